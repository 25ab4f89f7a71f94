//! The user interface in a real browser: headless Chromium, driven by chromedriver, at the running binary.

#[path = "../support/mod.rs"]
mod support;

mod audit;
mod browser;
mod fixture;
mod inert;
mod operations;
mod pages;
mod screenshots;
mod sign_in;
mod verify;
