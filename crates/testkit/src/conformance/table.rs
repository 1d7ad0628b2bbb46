//! The tables: every behaviour, every field of the policy, and every toy with the claim that catches
//! it. Whatever is added here is a test of every backend.

use super::toys::Vice;
use super::{Entry, Needs, ends, fields, handed_in, input, output, signals, teardown};

use fields::{choice, files, limits, reach};

/// Hands the tables to another macro, after what it is to have first.
#[doc(hidden)]
#[macro_export]
macro_rules! each_entry {
    (($($then:tt)+) $($first:tt)*) => {
        $($then)+ ! {
            ($($first)*)
            behaviours {
                ends::every_exit_status_arrives_as_it_was Sh;
                ends::an_exit_status_is_the_outcomes Python;
                ends::a_signal_that_ends_a_program_is_named Sh;
                ends::a_program_that_ignores_everything_is_timed_out_and_dead Sh;
                ends::a_lack_of_memory_is_told_from_a_kill_and_ends_all Sh;
                ends::a_second_signal_cancels_whenever_it_comes Sh;
                ends::a_program_that_dies_of_a_signal_that_was_passed_on_was_cancelled Sh;
                ends::a_reader_that_goes_away_ends_the_run Sh;
                ends::output_that_cannot_be_written_is_not_the_programs_fault Python;
                ends::a_program_that_is_not_there_is_refused_and_nothing_ran Sh;
                ends::a_program_that_cannot_start_leaves_the_sandbox_for_another Sh;
                ends::a_sandbox_that_dies_under_its_program_is_lost Sh;
                ends::a_sandbox_that_was_lost_takes_nothing_more Sh;
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
                signals::a_signal_to_a_program_that_has_ended_is_no_error Sh;
                handed_in::files_are_there_before_the_program_starts Python;
                handed_in::arguments_arrive_as_they_are Python;
                handed_in::code_of_any_origin_and_length_runs Python;
                handed_in::variables_of_the_request_win_over_the_policys Python;
                handed_in::a_second_program_finds_what_the_first_left_but_not_its_variables Python;
                handed_in::one_program_runs_at_a_time_and_its_end_is_kept_for_whoever_asks Python;
                handed_in::a_file_that_does_not_fit_is_an_error_and_the_sandbox_goes_on Python;
                handed_in::what_changed_comes_out_and_nothing_else_and_not_before_the_halt Python;
                teardown::after_a_halt_everything_is_dead Sh;
                teardown::a_halted_sandbox_takes_nothing_and_says_the_same_again Sh;
                teardown::closing_ends_everything Sh;
                teardown::dropping_a_session_ends_everything Sh;
                teardown::a_program_in_a_sandbox_that_is_gone_is_lost Sh;
                teardown::a_sandbox_that_was_opened_and_never_used_leaves_nothing Python;
                teardown::a_sweep_takes_what_is_there_and_minds_nothing_else Sh;
            }
            fields {
                limits::memory_beyond_the_limit_is_not_had Python;
                limits::processor_time_beyond_the_share_is_not_had Python;
                limits::processes_beyond_the_limit_are_not_had Processes;
                limits::bytes_beyond_the_disk_are_not_had Python;
                limits::files_beyond_their_number_are_not_had Python;
                limits::nothing_runs_beyond_the_deadline Sh;
                limits::a_program_has_its_grace_and_no_more Sh;
                limits::output_beyond_the_limit_is_not_passed_on Python;
                reach::what_the_policy_sets_is_set Python;
                reach::what_the_policy_passes_is_passed Python;
                reach::what_no_policy_names_is_not_passed Python;
                reach::nothing_leaves_without_a_rule Python;
                reach::a_rule_lets_through_what_it_names_or_is_refused Python;
                reach::a_credential_is_refused_as_long_as_nobody_mints_it Python;
                files::a_workspace_is_seen_and_not_written Python;
                files::an_input_is_seen_and_not_written Python;
                files::what_is_hidden_is_not_seen Python;
                files::what_is_kept_comes_out_and_nothing_else_that_a_tool_would_run Python;
                files::the_python_that_was_named_is_the_one_that_runs Sh;
                choice::another_backend_is_never_taken_instead Python;
                choice::what_is_required_is_there_or_the_run_is_refused Python;
                choice::an_accepted_gap_is_told_and_not_called_enforced Python;
                choice::a_terminal_is_had_or_the_run_is_refused Python;
            }
            toys {
                IgnoresMemory memory_beyond_the_limit_is_not_had;
                IgnoresCpus processor_time_beyond_the_share_is_not_had;
                IgnoresPids processes_beyond_the_limit_are_not_had;
                IgnoresDisk bytes_beyond_the_disk_are_not_had;
                IgnoresFiles files_beyond_their_number_are_not_had;
                IgnoresTimeout nothing_runs_beyond_the_deadline;
                IgnoresGrace a_program_has_its_grace_and_no_more;
                IgnoresOutput output_beyond_the_limit_is_not_passed_on;
                IgnoresSet what_the_policy_sets_is_set;
                IgnoresPass what_the_policy_passes_is_passed;
                PassesTheHostsEnvironment what_no_policy_names_is_not_passed;
                LetsOut nothing_leaves_without_a_rule;
                ClaimsEgress a_rule_lets_through_what_it_names_or_is_refused;
                ClaimsCredentials a_credential_is_refused_as_long_as_nobody_mints_it;
                IgnoresWorkspace a_workspace_is_seen_and_not_written;
                WritesThrough a_workspace_is_seen_and_not_written;
                IgnoresInputs an_input_is_seen_and_not_written;
                IgnoresHide what_is_hidden_is_not_seen;
                IgnoresKeep what_is_kept_comes_out_and_nothing_else_that_a_tool_would_run;
                IgnoresPython the_python_that_was_named_is_the_one_that_runs;
                ClaimsAKernel what_is_required_is_there_or_the_run_is_refused;
                CallsGapsEnforced an_accepted_gap_is_told_and_not_called_enforced;
                IgnoresTerminal a_terminal_is_had_or_the_run_is_refused;
                AlwaysExitsWithZero an_exit_status_is_the_outcomes;
                CallsSignalsExits a_signal_that_ends_a_program_is_named;
                CallsMemoryAKill a_lack_of_memory_is_told_from_a_kill_and_ends_all;
                CallsTheMissingStarted a_program_that_is_not_there_is_refused_and_nothing_ran;
                CallsTheLostEnded a_sandbox_that_dies_under_its_program_is_lost;
                LosesOutput ten_megabytes_arrive_whole_however_slowly_they_are_read;
                LosesLastWords the_last_words_before_an_end_arrive;
                HoldsOutput a_piece_comes_when_it_is_written_and_not_at_the_end;
                MixesStreams each_stream_keeps_its_order_and_its_name;
                LosesInput a_megabyte_comes_back_as_it_went_in;
                NeverEndsInput an_input_that_is_not_there_is_empty;
                LosesSignals a_signal_reaches_the_program;
                LosesFiles files_are_there_before_the_program_starts;
                ForgetsChanges what_changed_comes_out_and_nothing_else_and_not_before_the_halt;
                LeavesProcesses after_a_halt_everything_is_dead;
                CountsNothing a_program_that_ignores_everything_is_timed_out_and_dead;
                LivesForEver a_halted_sandbox_takes_nothing_and_says_the_same_again;
                ClosesNothing closing_ends_everything;
                OutlivesItsDrop dropping_a_session_ends_everything;
                SweepsNothing a_sweep_takes_what_is_there_and_minds_nothing_else;
            }
        }
    };
}

macro_rules! tables {
    (
        ()
        behaviours { $($place:ident::$claim:ident $needs:ident;)+ }
        fields { $($field_place:ident::$field:ident $field_needs:ident;)+ }
        toys { $($vice:ident $caught_by:ident;)+ }
    ) => {
        /// What every backend must show.
        pub static BEHAVIOURS: &[Entry] =
            &[$(Entry { claim: stringify!($claim), needs: Needs::$needs, check: $place::$claim },)+];

        /// What becomes of each field of the policy.
        pub static FIELDS: &[Entry] =
            &[$(Entry { claim: stringify!($field), needs: Needs::$field_needs, check: $field_place::$field },)+];

        /// Which claim catches which vice.
        pub static CAUGHT: &[(Vice, &str)] = &[$((Vice::$vice, stringify!($caught_by)),)+];
    };
}

each_entry! { (tables) }

/// Fields whose claim no toy breaks, and why: a backend never sees them.
pub static WITHOUT_TOY: &[(&str, &str)] =
    &[("another_backend_is_never_taken_instead", "the engine chooses before any backend is asked")];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_field_has_a_toy_that_ignores_it_or_a_reason() {
        let caught: BTreeSet<_> = CAUGHT.iter().map(|(_, claim)| *claim).collect();
        for entry in FIELDS {
            let excused = WITHOUT_TOY.iter().any(|(claim, _)| *claim == entry.claim);
            assert!(caught.contains(entry.claim) != excused, "{}", entry.claim);
        }
    }

    #[test]
    fn every_vice_is_caught_by_a_claim_that_there_is_and_no_claim_is_there_twice() {
        for (_, claim) in CAUGHT {
            let _ = Entry::of(claim); // panics if there is none
        }
        assert_eq!(CAUGHT.iter().map(|(vice, _)| vice).collect::<BTreeSet<_>>().len(), Vice::ALL.len());
        let claims: BTreeSet<_> = BEHAVIOURS.iter().chain(FIELDS).map(|entry| entry.claim).collect();
        assert_eq!(claims.len(), BEHAVIOURS.len() + FIELDS.len());
    }
}
