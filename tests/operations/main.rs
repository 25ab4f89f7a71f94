//! Tests of operating Walhook: commands, configuration, the shipped files, metrics, traces,
//! upgrades and long runs.

#[path = "../support/mod.rs"]
mod support;

mod alerts;
mod check;
mod configuration;
mod connections;
mod demo;
mod deploy;
mod docs;
mod environment;
mod erase;
mod init;
mod kubernetes;
mod licences;
mod listen;
mod observability;
mod package;
mod partitions;
mod priorities;
mod private_postgres;
mod receive;
mod release;
mod secrets;
mod settings;
mod soak;
mod start;
mod statements;
mod status;
mod trigger;
mod upgrade;
mod warm_up;
