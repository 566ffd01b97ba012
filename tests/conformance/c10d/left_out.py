"""Tests of PyTorch's suite that are left out, each with the reason."""

# On any backend that is not called gloo.
FOR_THE_NAME = {
    "test_monitored_barrier_gloo": "monitored_barrier refuses every backend but the one of that name",
    "test_monitored_barrier_gloo_subgroup": "monitored_barrier refuses every backend but the one of that name",
    "test_monitored_barrier_gloo_rank_0_timeout": "monitored_barrier refuses every backend but the one of that name",
    "test_monitored_barrier_failure_order": "monitored_barrier refuses every backend but the one of that name",
    "test_monitored_barrier_allreduce_hang": "monitored_barrier refuses every backend but the one of that name",
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": "monitored_barrier refuses every backend but the one of that name",
    "test_monitored_barrier_wait_all_ranks": "monitored_barrier refuses every backend but the one of that name",
    "test_ddp_profiling_torch_profiler": "looks for events that PyTorch's own backends record, by their names",
    "test_ddp_profiling_autograd_profiler": "looks for events that PyTorch's own backends record, by their names",
    "test_ddp_profiling_execution_trace": "looks for events that PyTorch's own backends record, by their names",
}

_BATCH_NORM = "synchronised batch normalisation has no CPU kernel"
_STREAMS = "works with CUDA streams, which CPU tensors have not"
_DEVICE = "is about tensors on a GPU"

# With tests for GPUs on CPU tensors: what cannot work there, and does not with gloo either.
NOT_ON_CPU = {
    "test_DistributedDataParallel_SyncBatchNorm": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Channels_Last": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_half": _BATCH_NORM,
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": _BATCH_NORM,
    "test_sync_bn_logged": _BATCH_NORM,
    "test_average_parameters": _DEVICE,
    "test_ddp_apply_optim_in_backward": _STREAMS,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": _STREAMS,
    "test_ddp_apply_optim_in_backward_ignored_params": _STREAMS,
    "test_ddp_compile_static_graph": _DEVICE,
    "test_ddp_device": _DEVICE,
    "test_ddp_inference": _DEVICE,
    "test_ddp_logging_data_gpu": _DEVICE,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none": _STREAMS,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none": _STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none": _STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none": _STREAMS,
    "test_ddp_uneven_inputs": "contains PowerSGD's hook, which hangs or crashes with gloo",
    "test_monitored_barrier_allreduce_hang": "makes a group of backend nccl",
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": "makes a group of backend nccl",
}
