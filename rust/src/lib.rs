//! `kvorum.edge._native`: the network edge on native threads.

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCE_HASH", env!("KVORUM_SOURCE_HASH"))
}
