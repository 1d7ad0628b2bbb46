//! What leaves a program that has no sockets, and asks its host for connections.

use cofferdam_testkit::rows::Row;

use crate::net::addresses::{
    LOOPBACK, metadata_is_out_of_reach_whatever_a_rule_says, nothing_nearby_is_reached,
};
use crate::net::names::{SECRETS, what_is_allowed_is_bounded};
use crate::net::without_a_rule_nothing_leaves;
use crate::world::World;
use crate::{Ended, in_wasm};

in_wasm!("NET-01", without_a_rule_nothing_leaves);
in_wasm!("NET-04", what_is_not_allowed_is_not_looked_up);
in_wasm!("NET-06", metadata_is_out_of_reach_whatever_a_rule_says);
in_wasm!("NET-07", neither_the_host_nor_its_networks_are_reached);

fn what_is_not_allowed_is_not_looked_up(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    world.denies(row, &["--allow", "allowed.test"], SECRETS);
    what_is_allowed_is_bounded(row, &world);
    Ended::Tested
}

fn neither_the_host_nor_its_networks_are_reached(row: &mut Row) -> Ended {
    let world = match World::around(row) {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    world.denies(row, &[], LOOPBACK);
    nothing_nearby_is_reached(row, &world);
    Ended::Tested
}
