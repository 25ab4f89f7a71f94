//! Reliability: faults at named points, of disks, of networks and of servers, and an account of
//! every event and delivery afterwards.

#[path = "../support/mod.rs"]
mod support;

mod availability;
mod disks;
#[cfg(feature = "failpoints")]
mod failpoints;
mod log;
mod long_run;
mod network;
