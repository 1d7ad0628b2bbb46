//! The tables: every behaviour, every field of the policy, and every toy with the claim that catches
//! it and words that only this failure has. Whatever is added here is a test of every backend.

use super::toys::Vice;
use super::{Entry, Needs, alone, ends, fields, handed_in, input, output, signals, teardown};

use fields::{choice, files, limits, reach};

/// Hands the tables to another macro, after what it is to have first.
#[doc(hidden)]
#[macro_export]
macro_rules! each_entry {
    (($($then:tt)+) $($first:tt)*) => {
        $($then)+ ! {
            ($($first)*)
            behaviours {
                ends::every_exit_status_arrives_as_it_was Python;
                ends::an_exit_status_is_the_outcomes Python;
                ends::a_signal_that_ends_a_program_is_named Python;
                ends::a_program_that_ignores_everything_is_timed_out_and_dead Python;
                ends::what_was_used_is_told Python;
                ends::a_lack_of_memory_is_told_from_a_kill_and_ends_all Python;
                ends::a_second_signal_cancels_whenever_it_comes Python;
                ends::a_program_that_dies_of_a_signal_that_was_passed_on_was_cancelled Python;
                ends::a_reader_that_goes_away_ends_the_run Python;
                ends::output_that_cannot_be_written_is_not_the_programs_fault Python;
                ends::a_program_that_is_not_there_is_refused_and_nothing_ran Sh;
                ends::a_program_that_cannot_start_leaves_the_sandbox_for_another Python;
                ends::a_sandbox_that_dies_under_its_program_is_lost Python;
                ends::a_sandbox_that_was_lost_takes_nothing_more Python;
                output::nothing_is_nothing Python;
                output::output_arrives_byte_for_byte Python;
                output::a_character_that_is_cut_between_writes_arrives_whole Python;
                output::ten_megabytes_arrive_whole_however_slowly_they_are_read Python;
                output::each_stream_keeps_its_order_and_its_name Python;
                output::a_piece_comes_when_it_is_written_and_not_at_the_end Python;
                output::a_stream_that_is_closed_ends_nothing_else Python;
                output::the_last_words_before_an_end_arrive Python;
                output::a_reader_that_stops_reading_holds_no_deadline_up Python;
                output::a_child_that_holds_the_output_open_holds_nobody_up Sh;
                input::an_input_that_is_not_there_is_empty Python;
                input::a_megabyte_comes_back_as_it_went_in Python;
                input::an_input_that_nobody_reads_holds_nobody_up Python;
                input::an_input_that_never_ends_ends_with_its_program Python;
                signals::a_signal_reaches_the_program Sh;
                signals::a_signal_reaches_what_the_program_started Sh;
                signals::a_signal_to_a_program_that_has_ended_is_no_error Python;
                signals::another_size_reaches_a_program_that_runs_on_a_terminal Python;
                handed_in::files_are_there_before_the_program_starts Python;
                handed_in::arguments_arrive_as_they_are Python;
                handed_in::code_of_any_origin_and_length_runs Python;
                handed_in::what_it_says_that_it_runs_runs_and_nothing_else Python;
                handed_in::variables_of_the_request_win_over_the_policys Python;
                handed_in::a_second_program_finds_what_the_first_left_but_not_its_variables Python;
                handed_in::one_program_runs_at_a_time_and_its_end_is_kept_for_whoever_asks Python;
                handed_in::a_file_that_does_not_fit_is_an_error_and_the_sandbox_goes_on Python;
                handed_in::what_changed_comes_out_and_nothing_else_and_not_before_the_halt Python;
                alone::what_no_policy_shows_is_not_seen Python;
                alone::a_second_sandbox_finds_nothing_of_the_first Python;
                teardown::after_a_halt_everything_is_dead Python;
                teardown::a_halted_sandbox_takes_nothing_and_says_the_same_again Python;
                teardown::closing_ends_everything Python;
                teardown::dropping_a_session_ends_everything Python;
                teardown::a_program_in_a_sandbox_that_is_gone_is_lost Python;
                teardown::a_sandbox_that_was_opened_and_never_used_leaves_nothing Python;
                teardown::a_sweep_takes_what_is_there_and_minds_nothing_else Python;
            }
            fields {
                limits::memory_beyond_the_limit_is_not_had Python;
                limits::processor_time_beyond_the_share_is_not_had Python;
                limits::processes_beyond_the_limit_are_not_had Processes;
                limits::bytes_beyond_the_disk_are_not_had Python;
                limits::files_beyond_their_number_are_not_had Python;
                limits::nothing_runs_beyond_the_deadline Python;
                limits::a_program_has_its_grace_and_no_more Sh;
                limits::output_beyond_the_limit_is_not_passed_on Python;
                reach::what_the_policy_sets_is_set Python;
                reach::what_the_policy_passes_is_passed Python;
                reach::what_no_policy_names_is_not_passed Python;
                reach::nothing_leaves_without_a_rule Python;
                reach::a_rule_lets_through_what_it_names_or_is_refused Python;
                reach::what_leaves_ends_at_its_limits_or_the_rule_is_refused Python;
                reach::a_credential_is_refused_as_long_as_nobody_mints_it Python;
                files::a_workspace_is_seen_and_not_written Python;
                files::a_copy_is_of_the_moment_before_the_start Python;
                files::an_input_is_seen_and_not_written Python;
                files::what_is_hidden_is_not_seen Python;
                files::what_is_kept_comes_out_and_nothing_else_that_a_tool_would_run Python;
                files::the_python_that_was_named_is_the_one_that_runs Python;
                choice::another_backend_is_never_taken_instead Python;
                choice::what_is_required_is_there_or_the_run_is_refused Python;
                choice::an_accepted_gap_is_told_and_not_called_enforced Python;
                choice::a_terminal_is_had_or_the_run_is_refused Python;
            }
            toys {
                IgnoresMemory memory_beyond_the_limit_is_not_had "bytes of memory";
                IgnoresCpus processor_time_beyond_the_share_is_not_had "with a tenth of a core";
                IgnoresPids processes_beyond_the_limit_are_not_had "it had 4";
                IgnoresDisk bytes_beyond_the_disk_are_not_had "with a limit of 2 MiB";
                IgnoresFiles files_beyond_their_number_are_not_had "with a limit of 300";
                IgnoresTimeout nothing_runs_beyond_the_deadline "it left";
                IgnoresGrace a_program_has_its_grace_and_no_more "it was never asked to end";
                IgnoresSet what_the_policy_sets_is_set "SET_TEXT isn't";
                IgnoresPass what_the_policy_passes_is_passed "PASSED_TEXT isn't there";
                PassesTheHostsEnvironment what_no_policy_names_is_not_passed "the host's";
                LetsOut nothing_leaves_without_a_rule "something left by";
                ClosesDoors a_rule_lets_through_what_it_names_or_is_refused "what the rule names";
                ClaimsCredentials a_credential_is_refused_as_long_as_nobody_mints_it "there is no broker here";
                IgnoresWorkspace a_workspace_is_seen_and_not_written "No such file or directory: 'src/a.txt'";
                WritesThrough a_workspace_is_seen_and_not_written "the host's files are others now";
                IgnoresCopy a_copy_is_of_the_moment_before_the_start "since is in the copy";
                IgnoresInputs an_input_is_seen_and_not_written "No such file or directory: '/inputs/data/data.csv'";
                IgnoresHide what_is_hidden_is_not_seen "sk-hidden";
                IgnoresKeep what_is_kept_comes_out_and_nothing_else_that_a_tool_would_run "{\"plain.txt\"} came out";
                IgnoresPython the_python_that_was_named_is_the_one_that_runs "None /usr";
                IgnoresVenv the_python_that_was_named_is_the_one_that_runs "yes /opt/named None";
                ClaimsAKernel what_is_required_is_there_or_the_run_is_refused "and so none of its own";
                CallsGapsEnforced an_accepted_gap_is_told_and_not_called_enforced "is said to be enforced";
                IgnoresTerminal a_terminal_is_had_or_the_run_is_refused "Inappropriate ioctl";
                AlwaysExitsWithZero an_exit_status_is_the_outcomes "ended Exited(1): Exited(0)";
                CallsSignalsExits a_signal_that_ends_a_program_is_named "ended Signalled(6): Exited(134)";
                CallsMemoryAKill a_lack_of_memory_is_told_from_a_kill_and_ends_all "ended OutOfMemory: Signalled(9)";
                CallsTheMissingStarted a_program_that_is_not_there_is_refused_and_nothing_ran "ended Refused: Exited(127)";
                CallsTheLostEnded a_sandbox_that_dies_under_its_program_is_lost "ended BackendLost: Exited(0)";
                LosesOutput ten_megabytes_arrive_whole_however_slowly_they_are_read "of 10000000 came";
                LosesLastWords the_last_words_before_an_end_arrive "of 200000 bytes came";
                HoldsOutput a_piece_comes_when_it_is_written_and_not_at_the_end "it came at the end";
                MixesStreams each_stream_keeps_its_order_and_its_name "out of order";
                LosesInput a_megabyte_comes_back_as_it_went_in "0 bytes came back";
                NeverEndsInput an_input_that_is_not_there_is_empty "ended Exited(0): TimedOut";
                LosesSignals a_signal_reaches_the_program "ended Exited(7): TimedOut";
                IgnoresResize another_size_reaches_a_program_that_runs_on_a_terminal "0 71 17";
                RunsNothing what_it_says_that_it_runs_runs_and_nothing_else "and says that it can't";
                LosesFiles files_are_there_before_the_program_starts "No such file or directory: 'large'";
                ForgetsChanges what_changed_comes_out_and_nothing_else_and_not_before_the_halt "{} came out";
                ShowsTheHost what_no_policy_shows_is_not_seen "it read what no policy shows";
                WritesToTheHost what_no_policy_shows_is_not_seen "it wrote beside";
                ReachesProcesses what_no_policy_shows_is_not_seen "it killed a process";
                KeepsState a_second_sandbox_finds_nothing_of_the_first "after the first a second finds";
                LeavesProcesses after_a_halt_everything_is_dead "what still runs";
                CountsNothing a_program_that_ignores_everything_is_timed_out_and_dead "0 were left";
                CountsNoTime what_was_used_is_told "200 ms of processor time, told as";
                CountsNoMemory what_was_used_is_told "50 MiB of memory, told as";
                CountsNoProcesses what_was_used_is_told "children, told as";
                HidesLimits processes_beyond_the_limit_are_not_had "that a fork was refused isn't told";
                LivesForEver a_halted_sandbox_takes_nothing_and_says_the_same_again "a sandbox that was halted is alive";
                ClosesNothing closing_ends_everything "what still runs";
                OutlivesItsDrop dropping_a_session_ends_everything "what still runs";
                SweepsNothing a_sweep_takes_what_is_there_and_minds_nothing_else "what was swept lives";
                TracesNothing a_sweep_takes_what_is_there_and_minds_nothing_else "its traces don't lead to";
            }
        }
    };
}

macro_rules! tables {
    (
        ()
        behaviours { $($place:ident::$claim:ident $needs:ident;)+ }
        fields { $($field_place:ident::$field:ident $field_needs:ident;)+ }
        toys { $($vice:ident $caught_by:ident $says:literal;)+ }
    ) => {
        /// What every backend must show.
        pub static BEHAVIOURS: &[Entry] =
            &[$(Entry { claim: stringify!($claim), needs: Needs::$needs, check: $place::$claim },)+];

        /// What becomes of each field of the policy.
        pub static FIELDS: &[Entry] =
            &[$(Entry { claim: stringify!($field), needs: Needs::$field_needs, check: $field_place::$field },)+];

        /// Which claim catches which vice, and what it says then.
        pub static CAUGHT: &[(Vice, &str, &str)] = &[$((Vice::$vice, stringify!($caught_by), $says),)+];
    };
}

each_entry! { (tables) }

/// Fields whose claim no toy breaks, and why: a backend never sees them.
pub static WITHOUT_TOY: &[(&str, &str)] = &[
    ("another_backend_is_never_taken_instead", "the engine chooses before any backend is asked"),
    ("output_beyond_the_limit_is_not_passed_on", "the engine counts what it passes on"),
    ("what_leaves_ends_at_its_limits_or_the_rule_is_refused", "who counts what leaves is told by the engine"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cofferdam_core::files::{Files, Python, Shown, Workspace};
    use cofferdam_core::policy::{Environment, Limits, Policy};

    use super::*;

    /// The claims that each field of some types is held by. One that isn't named doesn't compile.
    macro_rules! held {
        ($($type:ident { $($field:ident: [$($claim:ident),+],)+ })+) => {{
            $(let _ = |it: &$type| { let $type { $($field: _,)+ } = it; };)+
            [$($((concat!(stringify!($type), ".", stringify!($field)), &[$(stringify!($claim)),+][..]),)+)+]
        }};
    }

    #[test]
    fn every_field_of_the_policy_has_its_claims() {
        let held = held! {
            Policy {
                profile: [another_backend_is_never_taken_instead],
                backend: [another_backend_is_never_taken_instead],
                limits: [memory_beyond_the_limit_is_not_had],
                environment: [what_no_policy_names_is_not_passed],
                files: [a_workspace_is_seen_and_not_written],
                network: [nothing_leaves_without_a_rule, a_rule_lets_through_what_it_names_or_is_refused],
                credentials: [a_credential_is_refused_as_long_as_nobody_mints_it],
                accept_gaps: [an_accepted_gap_is_told_and_not_called_enforced],
                require: [what_is_required_is_there_or_the_run_is_refused],
            }
            Limits {
                timeout: [nothing_runs_beyond_the_deadline],
                grace: [a_program_has_its_grace_and_no_more],
                memory_bytes: [memory_beyond_the_limit_is_not_had],
                cpus: [processor_time_beyond_the_share_is_not_had],
                pids: [processes_beyond_the_limit_are_not_had],
                disk_bytes: [bytes_beyond_the_disk_are_not_had],
                files: [files_beyond_their_number_are_not_had],
                output_bytes: [output_beyond_the_limit_is_not_passed_on],
                bytes_out: [what_leaves_ends_at_its_limits_or_the_rule_is_refused],
                requests: [what_leaves_ends_at_its_limits_or_the_rule_is_refused],
                connections: [what_leaves_ends_at_its_limits_or_the_rule_is_refused],
                hosts: [what_leaves_ends_at_its_limits_or_the_rule_is_refused],
            }
            Environment {
                set: [what_the_policy_sets_is_set],
                passed: [what_the_policy_passes_is_passed, what_no_policy_names_is_not_passed],
            }
            Files {
                workspace: [a_workspace_is_seen_and_not_written],
                shown: [an_input_is_seen_and_not_written],
                hide: [what_is_hidden_is_not_seen],
                keep: [what_is_kept_comes_out_and_nothing_else_that_a_tool_would_run],
                python: [the_python_that_was_named_is_the_one_that_runs],
            }
            Workspace {
                host: [a_workspace_is_seen_and_not_written],
                copy: [a_copy_is_of_the_moment_before_the_start],
            }
            Shown {
                host: [an_input_is_seen_and_not_written],
                guest: [an_input_is_seen_and_not_written],
            }
            Python {
                executable: [the_python_that_was_named_is_the_one_that_runs],
                venv: [the_python_that_was_named_is_the_one_that_runs],
            }
        };
        let fields: BTreeSet<_> = FIELDS.iter().map(|entry| entry.claim).collect();
        for (field, claims) in held {
            assert!(claims.iter().all(|claim| fields.contains(claim)), "{field}: {claims:?}");
        }
        // What a request asks for is no field of the policy.
        let of_requests = ["a_terminal_is_had_or_the_run_is_refused"];
        let claimed: BTreeSet<_> = held.iter().flat_map(|(_, claims)| *claims).chain(&of_requests).collect();
        assert_eq!(claimed.into_iter().copied().collect::<BTreeSet<_>>(), fields);
    }

    #[test]
    fn every_field_has_a_toy_that_ignores_it_or_a_reason() {
        let caught: BTreeSet<_> = CAUGHT.iter().map(|(_, claim, _)| *claim).collect();
        for entry in FIELDS {
            let excused = WITHOUT_TOY.iter().any(|(claim, _)| *claim == entry.claim);
            assert!(caught.contains(entry.claim) != excused, "{}", entry.claim);
        }
    }

    #[test]
    fn every_vice_is_caught_by_a_claim_that_there_is_and_no_claim_is_there_twice() {
        for (_, claim, says) in CAUGHT {
            let _ = Entry::of(claim); // panics if there is none
            assert!(says.len() > 3, "any failure of {claim} says {says:?}");
        }
        assert_eq!(CAUGHT.iter().map(|(vice, ..)| vice).collect::<BTreeSet<_>>().len(), Vice::ALL.len());
        let claims: BTreeSet<_> = BEHAVIOURS.iter().chain(FIELDS).map(|entry| entry.claim).collect();
        assert_eq!(claims.len(), BEHAVIOURS.len() + FIELDS.len());
    }
}
