//! `kvorum.edge._native`: the network edge on native threads.
//!
//! One thread serves every socket; another writes the log. Neither ever takes the GIL: the
//! loop's own calls, in `edge`, are the only code that touches Python.

mod arrivals;
mod authority;
mod connection;
mod edge;
mod exchange;
mod grpc;
mod http1;
mod http2;
mod inbox;
mod io;
mod listener;
mod log_writer;
mod network;
mod ready;
mod shared;
mod stream;
mod wakeup;

use pyo3::prelude::*;

/// A call costs some twenty allocations, most of them h2's; this halves their price.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCE_HASH", env!("KVORUM_SOURCE_HASH"))?;
    module.add_class::<edge::NativeEdge>()
}
