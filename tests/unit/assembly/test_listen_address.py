"""Where a rank listens on each network of SHOAL_INTERFACE."""

import ipaddress

from shoal.assembly.listen_address import OwnInterface, own_interfaces
from shoal.assembly.meeting_point import MeetingPoint
from shoal.config.addresses import Address
from shoal.config.interfaces import Interface

ETH0 = Interface("eth0", (ipaddress.ip_interface("10.98.0.2/24"), ipaddress.ip_interface("fd00::2/64")))
ETH1 = Interface("eth1", (ipaddress.ip_interface("10.98.1.2/16"),))


def found(toward: str, *interfaces: Interface, one_machine: bool = False) -> list[OwnInterface]:
    meeting_point = MeetingPoint(Address("10.98.1.1", 7000), b"", list(interfaces))
    return own_interfaces(meeting_point, toward, one_machine)


def test_the_order_is_that_of_shoal_interface_whichever_leads_to_rank_0() -> None:
    both = [OwnInterface("eth0", "10.98.0.2", 24), OwnInterface("eth1", "10.98.1.2", 16)]
    assert found("10.98.0.2", ETH0, ETH1) == both
    assert found("10.98.1.2", ETH0, ETH1) == both
    assert found("10.98.1.2", ETH1, ETH0) == both[::-1]


def test_the_address_that_leads_to_rank_0_stands_for_its_interface() -> None:
    assert [one.host for one in found("fd00::2", ETH0, ETH1)] == ["fd00::2", "10.98.1.2"]


def test_without_an_interface_that_leads_to_rank_0_there_is_one_network() -> None:
    assert found("10.98.0.9", ETH0, ETH1) == found("10.98.0.9") == [OwnInterface("", "10.98.0.9", 0)]
    assert found("10.98.0.2", ETH0, ETH1, one_machine=True) == [OwnInterface("", "10.98.0.2", 0)]
    assert found("127.0.0.1", ETH0) == [OwnInterface("", "127.0.0.1", 0)]
