//! Everything that Walhook does to the primary: reading its catalog, checking it, preparing it for capture and clearing it again.

pub(crate) mod catalog;
pub mod check;
pub(crate) mod conninfo;
pub(crate) mod identity;
pub mod install;
pub(crate) mod lease;
pub(crate) mod plan;
mod print;
pub(crate) mod slot;
pub(crate) mod snapshot;
pub mod teardown;
pub(crate) mod triggers;
pub(crate) mod uninstall;

pub(crate) use catalog::is_required;
