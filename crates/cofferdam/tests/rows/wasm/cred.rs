//! What the operator has, looked for in WebAssembly.

use cofferdam_testkit::rows::Row;

use crate::brokered::{
    a_token_for_one_thing_does_no_other, elsewhere_nothing_is_swapped,
    nothing_is_taken_when_its_time_is_over, the_secret_is_nowhere_but_in_the_broker,
    what_stands_for_it_is_worth_nothing_elsewhere,
};
use crate::{Ended, in_wasm};

in_wasm!("CRED-01", no_secret_of_the_environment_gets_in);
in_wasm!("CRED-02", credential_files_of_the_home_cannot_be_read);
in_wasm!("CRED-04", the_secret_is_nowhere_but_in_the_broker);
in_wasm!("CRED-05", elsewhere_nothing_is_swapped);
in_wasm!("CRED-08", a_token_for_one_thing_does_no_other);
in_wasm!("CRED-09", nothing_is_taken_when_its_time_is_over);
in_wasm!("CRED-10", what_stands_for_it_is_worth_nothing_elsewhere);

fn no_secret_of_the_environment_gets_in(row: &mut Row) -> Ended {
    crate::cred::no_secret_of_the_environment_gets_in(row)
}

fn credential_files_of_the_home_cannot_be_read(row: &mut Row) -> Ended {
    crate::cred::credential_files_of_the_home_cannot_be_read(row)
}
