//! A folder for sockets and files that is gone afterwards.

use sluice_spec::error::ApiError;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder that only this user may enter.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Self, ApiError> {
        let base = std::env::temp_dir();
        let process = std::process::id();
        let mut number = 0;
        loop {
            let path = base.join(format!("sluice-bench-{process}-{number}"));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(ApiError::io("make", &path, &error)),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The system cleans up remains in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
