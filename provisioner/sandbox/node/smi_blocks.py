"""Parts of `nvidia-smi -q -x` whose elements depend on the kind of GPU: ECC, retired pages, row remaps,
temperatures, clocks."""

from __future__ import annotations

from .smi_facts import Driver

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Gpu = dict[str, Any]


def _ecc_errors(driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    on = gpu["ecc"]["mode"] == "Enabled"

    def count(period: str, location: str) -> Any:
        return gpu["ecc"][period][location] if on else "N/A"

    if gpu["arch"] == "volta":
        return [
            (
                "ecc_errors",
                [
                    (
                        period,
                        [
                            (
                                bits,
                                [
                                    (
                                        "device_memory",
                                        count(period, "dram") if bits == "double_bit" else (0 if on else "N/A"),
                                    ),
                                    *((part, 0 if on else "N/A") for part in ("register_file", "l1_cache", "l2_cache")),
                                    ("texture_memory", "N/A"),
                                    ("texture_shm", "N/A"),
                                    ("cbu", 0 if on and bits == "double_bit" else "N/A"),
                                    ("total", count(period, "dram") if bits == "double_bit" else (0 if on else "N/A")),
                                ],
                            )
                            for bits in ("single_bit", "double_bit")
                        ],
                    )
                    for period in ("volatile", "aggregate")
                ],
            )
        ]
    zero: Any = 0 if on else "N/A"
    split = driver.is_in("535.161-535,540+")
    tree: list[tuple[str, Any]] = []
    for period in ("volatile", "aggregate"):
        sram: list[tuple[str, Any]] = (
            [("sram_uncorrectable_parity", zero), ("sram_uncorrectable_secded", count(period, "sram"))]
            if split
            else [("sram_uncorrectable", count(period, "sram"))]
        )
        rows = [
            ("sram_correctable", zero),
            *sram,
            ("dram_correctable", zero),
            ("dram_uncorrectable", count(period, "dram")),
        ]
        tree.append(
            (
                period,
                rows
                + ([("sram_threshold_exceeded", "No" if on else "N/A")] if split and period == "aggregate" else []),
            )
        )
    if split:
        parts = ("sram_l2", "sram_sm", "sram_microcontroller", "sram_pcie", "sram_other")
        tree.append(("aggregate_uncorrectable_sram_sources", [(part, zero) for part in parts]))
    if driver.branch >= 580:
        tree += [("channel_repair_pending", "No"), ("tpc_repair_pending", "No")]
    has_hbm = gpu["arch"] in ("hopper", "blackwell") and gpu["product"].get("link")
    if driver.is_in("580.173+"):
        tree.append(("unrepairable_memory", "No" if has_hbm else "N/A"))
    return [("ecc_errors", tree)]


def _retired_pages(_driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    # Cards without a row remapper (Volta, Turing) retire pages; the others print N/A here.
    old = gpu["product"]["banks"] is None
    count: Any = 0 if old else "N/A"
    pages: list[tuple[str, Any]] = [("retired_count", count), ("retired_pagelist", [] if old else "N/A")]
    pending = ("Yes" if gpu["remap"]["pending"] else "No") if old else "N/A"
    return [
        (
            "retired_pages",
            [
                ("multiple_single_bit_retirement", pages),
                ("double_bit_retirement", pages),
                ("pending_blacklist", pending),
                ("pending_retirement", pending),
            ],
        )
    ]


def _remapped_rows(driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    banks, remap = gpu["product"]["banks"], gpu["remap"]
    if banks is None or gpu["mig_current"] == "Enabled":
        return [("remapped_rows", "N/A")]
    damaged = remap["uncorrectable"] + remap["correctable"]
    rows = {"max": banks - damaged, "high": damaged, "partial": 0, "low": 0, "none": 0}
    inactive = driver.is_in("580.173-580,595+")
    return [
        (
            "remapped_rows",
            [
                ("remapped_row_corr", remap["correctable"]),
                *([("remapped_row_corr_inactive", 0)] if inactive else []),
                ("remapped_row_unc", remap["uncorrectable"]),
                *([("remapped_row_unc_inactive", 0)] if inactive else []),
                ("remapped_row_pending", "Yes" if remap["pending"] else "No"),
                ("remapped_row_failure", "Yes" if remap["failure"] else "No"),
                (
                    "row_remapper_histogram",
                    [(f"row_remapper_histogram_{name}", f"{number} bank(s)") for name, number in rows.items()],
                ),
            ],
        )
    ]


def _thresholds(_driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    product = gpu["product"]
    memory = product["temperature"][1]
    kind, limits = next((k, v) for k, v in product["thresholds"].items() if k != "now")
    suffix = "_tlimit_threshold" if kind == "tlimit" else "_threshold"
    values = ["N/A" if value is None else f"{value} C" for value in limits]
    target = product.get("target")
    return [
        (f"gpu_temp_max{suffix}", values[0]),
        (f"gpu_temp_slow{suffix}", values[1]),
        (f"gpu_temp_max_gpu{suffix}", values[2]),
        ("gpu_target_temperature", f"{target[0]} C" if target else "N/A"),
        ("memory_temp", "N/A" if memory is None else f"{memory} C"),
        (f"gpu_temp_max_mem{suffix}", values[3]),
    ]


def _supported_clocks(_driver: Driver, gpu: Gpu) -> list[tuple[str, Any]]:
    top, memory, _ = gpu["product"]["max"]
    steps = range(top, gpu["product"]["idle"][0] - 1, -15)
    values = [("value", f"{memory} MHz"), *(("supported_graphics_clock", f"{clock} MHz") for clock in steps)]
    return [("supported_clocks", [("supported_mem_clock", values)])]


BLOCKS = {
    "ecc_errors": _ecc_errors,
    "retired_pages": _retired_pages,
    "remapped_rows": _remapped_rows,
    "thresholds": _thresholds,
    "supported_clocks": _supported_clocks,
}
