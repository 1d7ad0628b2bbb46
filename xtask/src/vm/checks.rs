//! What is checked inside, as shell scripts in the words of `words.sh`.
//!
//! A script runs as root with `bash -euo pipefail`. It passes with 0, and says with 77 that its last line
//! is why it can't be checked here. `SPEC.md` names a check as `vm:NAME`.

use crate::test::results::{End, Run};

/// In which stage of the machine a check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No service manager; the root group passes on every controller.
    Root,
    /// The same, for what an ordinary user does in a cgroup that was made by hand.
    Delegated,
    /// In a service of systemd's, beside a user manager for the ordinary user.
    Service,
}

impl Stage {
    /// What the machine calls it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Stage::Root => "root",
            Stage::Delegated => "delegated",
            Stage::Service => "service",
        }
    }
}

/// One thing that is checked.
#[derive(Debug)]
pub(crate) struct Check {
    /// A claim, in the way of tests' names.
    pub(crate) name: &'static str,
    pub(super) stage: Stage,
    pub(super) script: &'static str,
}

impl Check {
    /// What came of it.
    pub(super) fn run(&self, end: End) -> Run {
        Run { binary: "vm".to_owned(), name: self.name.to_owned(), end }
    }
}

/// Every check, in the order of the stages.
pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "on_version_2_the_three_ceilings_are_in_force",
        stage: Stage::Root,
        script: r#"
            [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]
            outcome --memory 64MiB --disk 16MiB --cpus 0.5 --pids 20 -- sleep 10 &
            group=$(one_with_processes)
            [ "$(cat "$group/memory.max")" = 67108864 ]
            [ "$(cat "$group/memory.oom.group")" = 1 ]
            [ "$(cat "$group/cpu.max")" = "50000 100000" ]
            [ "$(cat "$group/pids.max")" = 21 ]
            wait
            is 'o["end"]' exited
            holds '{"memory", "cpu", "pids"} <= set(o["enforced"]) and not o["gaps"]'
            holds 'o["usage"]["memory_peak"] > 0'
            nothing_left
        "#,
    },
    Check {
        name: "on_version_2_memory_beyond_the_limit_ends_the_whole_sandbox",
        stage: Stage::Root,
        script: r#"
            outcome --memory 64MiB --disk 16MiB -- python3 -c 'x = bytearray(200 << 20)'
            is 'o["end"]' out_of_memory
            holds '"memory" in o["limits_hit"]'
            code=0
            "$COFFERDAM" run --profile internal --memory 64MiB --disk 16MiB -- \
                python3 -c 'x = bytearray(200 << 20)' || code=$?
            [ "$code" = 137 ]
            outcome --memory 256MiB --disk 16MiB -- python3 -c 'x = bytearray(60 << 20)'
            is 'o["exit_code"]' 0
            nothing_left
        "#,
    },
    Check {
        name: "on_version_2_a_killed_run_is_swept",
        stage: Stage::Root,
        script: r#"
            "$COFFERDAM" run --profile internal -- sleep 100 &
            group=$(one_with_processes)
            kill -KILL %1
            wait || true
            [ -d "$group" ]
            "$COFFERDAM" gc
            nothing_left
        "#,
    },
    Check {
        name: "on_version_2_processor_time_is_throttled",
        stage: Stage::Root,
        script: r#"
            outcome --cpus 0.2 --timeout 8s -- sh -c 'while :; do :; done' &
            group=$(one_with_processes)
            sleep 3
            grep -q '^nr_throttled [1-9]' "$group/cpu.stat"
            wait
            is 'o["end"]' timed_out
            nothing_left
        "#,
    },
    Check {
        name: "on_version_2_the_tests_of_the_limits_pass",
        stage: Stage::Root,
        // Without those that hold something against a clock: emulation, on a machine that does other
        // things too, is slower than any bound that means something.
        script: r#"
            suite it limits:: --test-threads 2 --skip deadline --skip with_grace \
                --skip processor_time_is_throttled --skip every_way_to_count_the_cores
        "#,
    },
    Check {
        name: "an_ordinary_user_divides_a_delegated_group",
        stage: Stage::Delegated,
        script: r#"
            delegate alone
            as_user -g "$GROUP" "$SUITE_own_cgroup" --nocapture --exact a_group_of_our_own_has_every_ceiling
            [ -d "$GROUP/cofferdam-self" ]
            [ "$(cat "$GROUP/cgroup.subtree_control")" = "cpu memory pids" ]
            # Another one, beside one that is still at work.
            as_user -g "$GROUP/cofferdam-self" sleep 5 &
            as_user -g "$GROUP/cofferdam-self" "$SUITE_own_cgroup" --nocapture --exact groups_are_made_beside_others_of_ours
            kill %1
        "#,
    },
    Check {
        name: "a_group_with_somebody_else_in_it_is_left_alone",
        stage: Stage::Delegated,
        script: r#"
            delegate shared
            as_user -g "$GROUP" sleep 30 &
            sleep 0.5
            as_user -g "$GROUP" "$SUITE_own_cgroup" --nocapture --exact without_a_group_of_our_own_the_reason_is_said
            [ ! -d "$GROUP/cofferdam-self" ]
            [ -z "$(cat "$GROUP/cgroup.subtree_control")" ]
            grep -q . "$GROUP/cgroup.procs"
            kill %1
        "#,
    },
    Check {
        name: "an_ordinary_user_in_a_delegated_group_runs_with_every_ceiling",
        stage: Stage::Delegated,
        script: r#"
            delegate mine
            outcome_as_user -g "$GROUP" --memory 64MiB --disk 16MiB -- python3 -c 'x = bytearray(200 << 20)'
            is 'o["end"]' out_of_memory
            holds '{"memory", "cpu", "pids"} <= set(o["enforced"]) and not o["gaps"]'
            outcome_as_user -g "$GROUP/cofferdam-self" --pids 10 -- \
                sh -c 'for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 20 & done'
            holds '"pids" in o["limits_hit"] and o["left"]["processes"] > 0'
            nothing_left
        "#,
    },
    Check {
        name: "root_in_a_service_has_every_ceiling",
        stage: Stage::Service,
        script: r#"
            outcome --memory 64MiB --disk 16MiB -- python3 -c 'x = bytearray(200 << 20)'
            is 'o["end"]' out_of_memory
            holds '{"memory", "cpu", "pids"} <= set(o["enforced"]) and not o["gaps"]'
            nothing_left
        "#,
    },
    Check {
        name: "the_user_manager_gives_an_ordinary_user_a_scope",
        stage: Stage::Service,
        script: r#"
            as_user "$SUITE_own_cgroup" --nocapture --exact a_group_of_our_own_has_every_ceiling
            began=$(date +%s%N)
            as_user busctl --user call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
                org.freedesktop.systemd1.Manager GetDefaultTarget > /dev/null
            echo "measured: another call, by busctl, takes $((($(date +%s%N) - began) / 1000000)) ms"
            for _ in $(seq 50); do
                left=$(find /sys/fs/cgroup/user.slice -name 'cofferdam-*')
                [ -z "$left" ] && exit 0
                sleep 0.1
            done
            echo "left: $left"
            exit 1
        "#,
    },
    Check {
        name: "an_ordinary_user_with_a_user_manager_runs_with_every_ceiling",
        stage: Stage::Service,
        script: r#"
            outcome_as_user --memory 64MiB --disk 16MiB -- python3 -c 'x = bytearray(200 << 20)'
            is 'o["end"]' out_of_memory
            holds '{"memory", "cpu", "pids"} <= set(o["enforced"]) and not o["gaps"]'
            nothing_left
        "#,
    },
    Check {
        name: "without_a_message_bus_the_reason_is_said",
        stage: Stage::Service,
        script: r#"
            BUS=
            as_user "$SUITE_own_cgroup" --nocapture --exact without_a_group_of_our_own_the_reason_is_said
        "#,
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_check_has_one_name_that_is_one_word() {
        let names: HashSet<_> = CHECKS.iter().map(|check| check.name).collect();
        assert_eq!(names.len(), CHECKS.len());
        for name in names {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name}");
        }
    }
}
