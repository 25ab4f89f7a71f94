//! Deliveries: the stages on a real store, and the whole process as receivers see it.

#[path = "../support/mod.rs"]
mod support;

mod attempt;
mod black_box;
mod cancellation;
mod connections;
mod deliver;
mod disablement;
mod dns;
mod edits;
mod fencing;
mod floods;
mod frames;
mod go_away;
mod guard;
mod handoff;
mod keys;
mod mail;
mod messages;
mod operator;
mod options;
mod order_locks;
mod ordering;
mod outbound;
mod record;
mod recovery;
mod replay;
mod scene;
mod schedule;
mod sequence;
mod shares;
mod signals;
mod silent_proxy;
mod simulation;
mod unpacking;
mod wire;
