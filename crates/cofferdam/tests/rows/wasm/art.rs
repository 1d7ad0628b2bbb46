//! Outputs and artifacts of programs of WebAssembly.

use cofferdam_testkit::rows::Row;

use crate::{Ended, in_wasm};

in_wasm!("ART-01", links_that_a_program_leaves_are_never_followed);
in_wasm!("ART-04", names_and_numbers_without_bounds_come_out_bounded);
in_wasm!("ART-08", output_drives_nothing_that_we_print);

fn links_that_a_program_leaves_are_never_followed(row: &mut Row) -> Ended {
    crate::art::links_that_a_program_leaves_are_never_followed(row)
}

fn names_and_numbers_without_bounds_come_out_bounded(row: &mut Row) -> Ended {
    row.inconclusive("names that are no UTF-8: WASI has none");
    crate::art::names_and_numbers_without_bounds_come_out_bounded(row)
}

fn output_drives_nothing_that_we_print(row: &mut Row) -> Ended {
    crate::art::output_drives_nothing_that_we_print(row)
}
