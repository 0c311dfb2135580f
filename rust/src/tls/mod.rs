//! TLS on both sides: files, certificates by the rules of Go, and etcd's words for what fails.

mod certificate;
mod chains;
pub mod client;
mod der;
mod files;
pub mod server;
pub mod words;
