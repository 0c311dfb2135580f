//! Reads settings, which Python passes as objects with an attribute for each.

use crate::windows::WINDOW_BYTES_MAX;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

pub fn seconds(settings: &Bound<'_, PyAny>, name: &str) -> PyResult<Duration> {
    Ok(Duration::from_secs_f64(settings.getattr(name)?.extract()?))
}

/// Reads a path; an empty one names no file.
pub fn file(settings: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<PathBuf>> {
    let path: PathBuf = settings.getattr(name)?.extract()?;
    Ok(Some(path).filter(|path| !path.as_os_str().is_empty()))
}

/// Reads the size of a window, as far as HTTP/2 allows it.
pub fn window_bytes(settings: &Bound<'_, PyAny>, name: &str) -> PyResult<u32> {
    let bytes: u32 = settings.getattr(name)?.extract()?;
    Ok(bytes.min(WINDOW_BYTES_MAX))
}
