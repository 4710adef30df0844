"""verl platform plug-in that lets the stock trainer run on a machine without an accelerator.

Loaded in every verl process (driver, Ray workers, vLLM engine core) through verl's own hook
`VERL_USE_EXTERNAL_MODULES`, selected by `VERL_PLATFORM=cpu`. Needs verl.plugin.platform (verl >= 0.9). Nothing in
site-packages is edited; the one runtime replacement is the process-group backend, see _use_plain_gloo.
"""

import functools
import os
import types
from contextlib import contextmanager

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _device_module() -> types.ModuleType:
    """torch.cpu plus the memory calls verl makes on torch.<device> (engine_workers, memory_utils)."""
    mod = types.ModuleType("grpo_perf_cpu_device")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(mod, name, getattr(torch.cpu, name))

    def rss(*_a, **_k):
        return psutil.Process().memory_info().rss

    def mem_get_info(*_a, **_k):
        vm = psutil.virtual_memory()
        return vm.available, vm.total

    def noop(*_a, **_k):
        return None

    mod.is_available = lambda: False  # several verl helpers mean "has an accelerator" by this
    mod.memory_allocated = mod.max_memory_allocated = rss
    mod.memory_reserved = mod.max_memory_reserved = rss
    mod.mem_get_info = mem_get_info
    mod.empty_cache = mod.ipc_collect = mod.set_device = noop
    mod.reset_peak_memory_stats = mod.manual_seed = mod.manual_seed_all = noop
    mod.current_device = lambda: torch.device("cpu")
    mod.device_count = lambda: 1
    mod.get_device_name = lambda *_a: "CPU"
    mod.get_rng_state = torch.get_rng_state
    mod.set_rng_state = torch.set_rng_state
    return mod


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    _module = None

    device_name = "cpu"
    vendor_name = "cpu"

    @property
    def device_module(self):
        if PlatformCPU._module is None:
            PlatformCPU._module = _device_module()
        return PlatformCPU._module

    def is_available(self):
        return True

    # verl passes this to Tensor.to(); an int would mean cuda:<int>.
    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    # Ray is started with a pretended GPU (ray_kwargs.ray_init.num_gpus=1): verl's resource pools
    # and get_accelerator_ids() only know accelerator resources.
    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    # False selects verl's shared-memory weight transfer instead of CUDA IPC.
    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass


def _use_plain_gloo():
    """verl composes "cpu:gloo,<device>:<backend>"; torch rejects the duplicate for device "cpu".

    Default the backend argument instead.  Runs before verl.workers.* binds the function by name.
    """
    from verl.utils import distributed as d

    original = d.initialize_global_process_group_ray

    @functools.wraps(original)
    def init(timeout_second=None, backend=None):
        return original(timeout_second, backend or "cpu:gloo")

    d.initialize_global_process_group_ray = init


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    _use_plain_gloo()
