"""Every benchmark gives the figures that it promises, in the form in which they are kept."""

import importlib
import json
import re

import pytest

from benchmarks import figures, telemetry
from benchmarks.figures import Figure, Outcome
from benchmarks.stats import percentile

PROMISED = {
    "engines": {
        "remote_start_added_ms",
        "log_follow_p95_ms",
        "local_worse_percent_max",
        "two_nodes_losses_equal",
        "node_memory_mib",
    },
    "load": {
        "submit_p99_ms",
        "submit_per_s",
        "submit_postgresql_p99_ms",
        "submit_postgresql_per_s",
        "sandbox_added_ms",
        "list_p99_ms",
        "pass_ms",
        "pass_peak_mib",
        "frame_age_p99_ms",
        "effective_training_ratio",
    },
    "install": {"uvx_demo_s", "client_mb", "client_disk_mb", "client_import_ms"},
    "start": {
        "submit_to_start_ms",
        "over_torchrun_ms",
        "burst40_last_start_ms",
        "post_p95_ms",
        "slurm_ms",
        "tsp_ms",
    },
    "recover": {"mttr_s", "mttr_ratio"},
    "fault_times": {
        "supervisor_death_s",
        "cancel_over_grace_s",
        "time_limit_over_s",
        "saved_preempt_s",
        "worker_killed_s",
        "worker_away_first_s",
        "worker_away_next_s",
        "redis_killed_s",
        "redis_forgets_s",
        "redis_hangs_submit_s",
        "redis_hangs_submit_median_s",
        "plan_of_100_ms",
        "power_cut_s",
    },
    "telemetry": {
        "report_us",
        "ingest_points_s",
        "bytes_per_point",
        "downsample_ms",
        "spikes_kept",
        "frame_age_p95_ms",
    },
    "tee": {"tee_us"},
    "scheduling": {
        "geo_jct_x_lb_all",
        "geo_jct_x_lb_half",
        "geo_jct_x_lb_none_equal",
        "philly64_jct_s",
        "p99_slowdown_max",
        "jain_min",
        "makespan_x_lb_philly64",
        "restarts_per_job",
        "restart_gpu_time_percent",
        "eta_ranges_held",
        "resampled_vs_best_oracle_max",
        "elastic_jct_ratio",
        "elastic_jct_ratio_openb8",
        "geo_jct_x_lb_baseline_fifo",
        "geo_jct_x_lb_baseline_easy_limit",
        "geo_jct_x_lb_baseline_mlfq",
        "geo_jct_x_lb_baseline_srsf_limit",
        "geo_jct_x_lb_baseline_trial_progress",
        "geo_jct_x_lb_baseline_srsf",
    },
    "packing": {
        "openb_alloc_100",
        "openb_alloc_130",
        "openb_alloc_100_random",
        "openb_alloc_130_random",
        "openb_alloc_100_best",
        "openb_alloc_130_best",
        "openb_alloc_100_fgd",
        "openb_alloc_130_fgd",
    },
    "decide": {
        "decide_10k_p99_ms",
        "decide_8gpu_p99_ms",
        "decide_10k_plain_p99_ms",
        "decide_8gpu_plain_p99_ms",
        "plan_http_p95_ms",
        "explain_http_p95_ms",
        "explain_1000_http_p95_ms",
        "queue_http_p95_ms",
    },
    "pages": {
        "overview_lcp_ms",
        "overview_bytes",
        "job_lcp_ms",
        "job_bytes",
        "tick_ms",
        "chart_update_ms",
        "pixel_p95_ms",
        "long_tasks",
        "log_open_ms",
        "log_jump_ms",
        "log_jump_frame_ms",
        "log_search_ms",
        "lost",
        "doubled",
        "spikes_seen",
        "scripts_first_kb",
        "scripts_all_kb",
        "cli_start_ms",
        "axe_violations",
        "cls_max",
        "overflow_pages",
        "page_500_lcp_ms",
        "page_500_bytes",
        "brush_ms",
        "jobs_100k_open_ms",
        "jobs_scroll_p95_ms",
        "jobs_sort_100k_ms",
        "foreign_requests",
        "csp_violations",
    },
    "checkpoint": {
        "ckpt_stall_ms",
        "ckpt_stall_ratio_torch_save",
        "ckpt_total_percent",
        "ckpt_torch_save_ms",
    },
    "resume": {"kill_points_ok", "kill_points"},
    "startup": {
        "import_added_ms",
        "warm_start_s",
        "torchrun_start_s",
        "raw_torchrun_start_s",
        "torchrun_added_s",
    },
    "step": {
        "step_cpu_ratio",
        "step_added_us",
        "step_cpu_ratio_tensors",
        "accelerate_step_cpu_ratio",
        "lightning_step_cpu_ratio",
    },
    "bench_grid": {"grid_s", "grid_cells"},
    "estimate": {
        "estimate_error_percent_max",
        "estimate_ms_max",
        "estimate_candidate_ms_max",
        "oom_trials_max",
        "oom_batch_min",
    },
    "sweeps": {
        "regret_vs_optuna_2",
        "regret_vs_optuna_5",
        "regret_vs_optuna_10",
        "suggest_ms_p95",
        "next_trial_s",
    }
    | {f"regret_vs_optuna_our_rungs_{budget}" for budget in (2, 5, 10)},
    "environments": {"env_warm_s", "env_again_ms", "env_disk_x", "env_cold_s"},
    "soak": {"growth_percent_max", "growth_mib_max", "frames_per_s", "soak_s"},
    "plan": {
        "partition_vgg16_x",
        "partition_gnmt_x",
        "partition_ms_max",
        "placer_worst_over_optimum",
        "placer_large_s",
        "plan_regret_max",
        "plan_regret_two_ranks_max",
        "plan_regret_noise",
        "plan_regret_two_ranks_noise",
        "mixed_regret_max",
        "mixed_regret_noise",
        "placed_losses_equal",
        "oom_trials_max",
    },
    "evaluation": {
        "ooms_plain",
        "ooms_lightning",
        "ooms_ours",
        "refused_ours",
        "peak_ratio",
        "speed_ratio_min",
        "cells",
    },
    "neighbours": {
        "slowdown_error_percent",
        "slowdown_error_worst_percent",
        "makespan_ratio",
        "mean_completion_ratio",
        "slowest_step_ratio",
    },
    "services": {
        "first_answer_from_zero_s",
        "p99_added_ms",
        "late_answers_percent",
        "refused_percent",
        "used_percent",
    },
    "sessions": {
        "click_to_notebook_s",
        "keystroke_added_ms",
        "download_ratio",
        "idle_cases_right",
        "attacks_refused",
    },
    "mcp": {"mcp_answer_p95_ms", "schema_tokens", "tasks_ok", "blind_calls"},
}
FIGURES = (Figure("fast_ms", "ms", "how fast", target=10), Figure("rival_ms", "ms", "another"))


def test_every_benchmark_has_a_promise():
    assert {*figures.NAMES, *figures.LONG} == set(PROMISED)


@pytest.mark.parametrize("name", figures.NAMES + figures.LONG)
def test_a_benchmark_gives_the_figures_it_promises(name):
    module = importlib.import_module(f"benchmarks.{name}")

    assert {each.name for each in module.FIGURES} == PROMISED[name]


@pytest.mark.parametrize("name", figures.NAMES + figures.LONG)
def test_the_readme_explains_each_figure(name):
    text = (figures.ROOT / "benchmarks" / "README.md").read_text()

    assert set(re.findall(r"`([a-z0-9_]+)`", text)) >= PROMISED[name]


def test_a_small_series_keeps_all_planted_spikes(tmp_path):
    outcome = Outcome()

    telemetry.measure_reading(outcome, tmp_path / "metrics", points=20_000)

    assert outcome.figures["spikes_kept"] == telemetry.SPIKES
    assert outcome.figures["downsample_ms"] > 0


def test_results_are_flat_and_say_what_was_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    outcome = Outcome({"fast_ms": 12.34567}, {"rival_ms": "not installed here"})

    figures.write_result("start", FIGURES, outcome, [0.1, 0.2, 0.3])

    record = json.loads((tmp_path / "results" / "start.json").read_text())
    assert record["figures"] == {"fast_ms": 12.35, "rival_ms": None}
    assert record["not_measured"] == {"rival_ms": "not installed here"}
    assert record["load"]["before"] == [0.1, 0.2, 0.3]


def test_the_table_says_which_target_is_missed():
    outcome = Outcome({"fast_ms": 12.0}, {"rival_ms": "not installed here"})

    text = figures.table("start", FIGURES, outcome)

    assert "| `fast_ms` | 12 ms | ≤ 10 ms | misses |" in text
    assert "| `rival_ms` | - |  | not installed here |" in text


def test_a_new_table_replaces_the_old_one_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "README", tmp_path / "README.md")
    figures.README.write_text("a\n<!-- start -->\nold\n<!-- /start -->\nb\n")

    figures.show_in_readme("start", "new\n")

    assert figures.README.read_text() == "a\n<!-- start -->\nnew\n<!-- /start -->\nb\n"


@pytest.mark.parametrize(("percent", "value"), [(50, 10), (95, 19), (100, 20)])
def test_a_percentile_is_one_of_the_values(percent, value):
    assert percentile(range(1, 21), percent) == value
