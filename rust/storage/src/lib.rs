//! The native storage code: rows, database files and log records for Python, and the log's writer.
//!
//! This crate knows no socket, no protocol and no loop. Python reaches its functions through the edge's
//! extension module, which exports them. A function takes many rows, pages or records per call, and
//! leaves whatever is unusual to the Python code that it replaces.

#![cfg_attr(not(feature = "python"), allow(dead_code))]

mod checksum;
pub mod encoding;
mod lmdb;
#[cfg(feature = "python")]
pub mod log_records;
pub mod log_writer;
#[cfg(feature = "python")]
pub mod newest;
#[cfg(feature = "python")]
pub mod pages;
#[cfg(feature = "python")]
pub mod row_pages;
#[cfg(feature = "python")]
pub mod rows;
