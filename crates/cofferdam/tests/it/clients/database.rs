//! A database, whose protocol nobody between reads.

use cofferdam_testkit::origins::Share;

use super::{for_each_user, this_test};
use cofferdam_testkit::servers::postgres::{Server, programs};

#[test]
fn psql() {
    let Some(programs) = programs() else {
        cofferdam_testkit::skip!("there is no PostgreSQL with its server below /usr/lib/postgresql");
    };
    let server = Server::start(&programs);
    let psql = programs.join("psql");
    let psql = psql.to_str().unwrap();
    for_each_user(this_test!("psql"), &[psql], |place| {
        place.net.share("5432", Share::Socket(server.socket()));
        let asks = |host: &'static str| ["--", psql, "-h", host, "-U", "postgres", "-Atc", "select 41 + 1"];
        place.reaches(&[], &asks("db.test"), "42");
        let reason = "FATAL:  Cofferdam: host_not_allowed, needs --allow tcp://other.test:5432";
        place.is_refused(&[], &asks("other.test"), reason);
    });
}
