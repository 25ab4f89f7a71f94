//! HTTP for the API and the web UI: the listener with its limits, middleware, request bodies, problem
//! details, and the brand of pages.

mod body;
mod brand;
mod budget;
mod clients;
pub mod conditional;
mod cors;
mod document;
pub mod middleware;
mod pairs;
pub mod problem;
mod serve;
mod wire;

pub use axum::Router;

pub use self::body::read as read_body;
pub use self::brand::{Brand, style_source};
pub use self::clients::{Occupied, Parked};
pub use self::cors::layer as cors;
pub use self::document::{Document, short_json};
pub use self::pairs::Pairs;
pub use self::serve::{Ending, ServeError, ServeLimits, serve};
