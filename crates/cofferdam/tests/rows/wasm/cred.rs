//! What the operator has, looked for in WebAssembly.

use cofferdam_testkit::rows::Row;

use crate::{Ended, in_wasm};

in_wasm!("CRED-01", no_secret_of_the_environment_gets_in);
in_wasm!("CRED-02", credential_files_of_the_home_cannot_be_read);

fn no_secret_of_the_environment_gets_in(row: &mut Row) -> Ended {
    crate::cred::no_secret_of_the_environment_gets_in(row)
}

fn credential_files_of_the_home_cannot_be_read(row: &mut Row) -> Ended {
    crate::cred::credential_files_of_the_home_cannot_be_read(row)
}
