//! Everything that Walhook does to the primary: reading its catalog, checking it, preparing it for
//! capture and clearing it again.

pub(crate) mod catalog;
pub(crate) mod conninfo;
pub mod error;
pub mod finding;
pub(crate) mod identity;
pub mod inspect;
pub mod install;
pub(crate) mod lease;
pub(crate) mod lineage;
pub(crate) mod mapped;
pub mod print;
pub(crate) mod publication;
pub(crate) mod slot;
pub(crate) mod snapshot;
pub mod survey;
pub(crate) mod table_locks;
pub(crate) mod triggers;
pub mod uninstall;

pub(crate) use catalog::is_required;
