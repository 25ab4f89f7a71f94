//! Erasing a user.

pub use crate::store::erase::{Erased, erase};
