"""The interfaces that SHOAL_INTERFACE names, on this machine's loopback."""

import ipaddress

import pytest

from shoal.config.interfaces import Interface, interfaces_of, own_addresses

LOOPBACK = ipaddress.ip_interface("127.0.0.1/8")


def test_an_interface_has_the_networks_of_its_addresses() -> None:
    (found,) = interfaces_of(["lo"])
    assert found.name == "lo"
    assert LOOPBACK in found.addresses


def test_an_address_of_an_interface_is_that_interface() -> None:
    assert [one.name for one in interfaces_of(["lo", "127.0.0.1"])] == ["lo"]
    assert interfaces_of(["127.0.0.1"]) == [Interface("lo", (LOOPBACK,))]


def test_an_address_that_is_nobodys_first_is_an_interface_of_its_own() -> None:
    found = interfaces_of(["127.0.0.1", "127.0.0.2"])
    assert [one.name for one in found] == ["lo", "127.0.0.2"]
    assert found[1].addresses == (ipaddress.ip_interface("127.0.0.2/32"),)


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="'nope' is not a network interface of this machine"):
        interfaces_of(["lo", "nope"])


def test_the_address_of_the_family_that_is_asked_for_is_taken() -> None:
    both = Interface("x", (ipaddress.ip_interface("10.0.0.1/24"), ipaddress.ip_interface("fd00::1/64")))
    assert str(both.address_like("10.0.0.9").ip) == "10.0.0.1"
    assert str(both.address_like("fd00::9").ip) == "fd00::1"
    assert str(Interface("x", both.addresses[:1]).address_like("fd00::9").ip) == "10.0.0.1"


def test_loopback_is_none_of_the_addresses_that_others_reach() -> None:
    assert not any(ipaddress.ip_address(host).is_loopback for host in own_addresses())
