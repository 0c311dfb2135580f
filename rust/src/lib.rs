//! `kvorum.network.edge._native`: the network edge on native threads.
//!
//! The network thread serves every socket, a second thread writes the log, and a third calls other
//! servers unless the network thread does that as well. None of them ever takes the GIL. Only the
//! loop's own calls (`server::python`, `upstream::python`), `key_values`, and the functions over many
//! rows, records or pages in the crate `kvorum-storage` touch Python.

#![cfg_attr(not(feature = "python"), allow(dead_code))]

#[cfg(feature = "python")]
mod attributes;
mod frames;
mod grpc;
mod headers;
mod keepalive;
#[cfg(feature = "python")]
mod key_values;
mod ready;
mod server;
mod sockets;
mod threads;
mod tls;
mod upstream;
mod windows;

/// An RPC makes some twenty allocations, most of them in h2; mimalloc halves their cost.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::server::python::NativeEdge;

    #[pymodule_export]
    use crate::key_values::key_values_json;

    #[pymodule_export]
    use kvorum_storage::log_records::skim_records;

    #[pymodule_export]
    use kvorum_storage::newest::NewestRows;

    #[pymodule_export]
    use kvorum_storage::pages::check_pages;

    #[pymodule_export]
    use kvorum_storage::row_pages::RowPages;

    #[pymodule_export]
    use kvorum_storage::rows::{leaves_of_rows, note_rows, rows_of_leaves};

    #[pymodule_export]
    use crate::upstream::python::{Relay, Upstream};

    #[pymodule_export]
    const SOURCE_HASH: &str = env!("KVORUM_SOURCE_HASH");
}
