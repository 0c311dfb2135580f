//! Stamps the extension with a hash of the sources it was built from.
//!
//! `kvorum.network.edge` computes the same hash in a checkout and refuses an extension that is stale.

use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// The sources: these files, and all of Rust in these directories.
const FILES: [&str; 4] = ["Cargo.lock", "Cargo.toml", "build.rs", "storage/Cargo.toml"];
const DIRECTORIES: [&str; 2] = ["src", "storage/src"];

fn main() {
    let mut files: Vec<_> = FILES.iter().map(PathBuf::from).collect();
    for directory in DIRECTORIES {
        println!("cargo:rerun-if-changed={directory}");
        collect(Path::new(directory), &mut files);
    }
    files.sort();

    let mut hash = Sha256::new();
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
        hash.update(file.to_str().expect("source paths are UTF-8").as_bytes());
        hash.update(b"\0");
        hash.update(fs::read(file).expect("source file is readable"));
        hash.update(b"\0");
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("cargo:rustc-env=KVORUM_SOURCE_HASH={digest}");
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("source directory is readable") {
        let path = entry.expect("directory entry is readable").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
