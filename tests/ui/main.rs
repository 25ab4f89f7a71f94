//! Tests of the web UI: the running binary in headless Chromium, driven by chromedriver.

#[path = "../support/mod.rs"]
mod support;

mod audit;
mod browser;
mod fixture;
mod inert;
mod jobs;
mod operations;
mod pages;
mod screenshots;
mod sign_in;
mod tenants;
mod verify;
