//! Options of a [`Cache`].

use super::Cache;
use crate::{Kind, OpenCx, Prepared, Shape};
use serde::{Deserialize, Serialize};
use sluice_options::{Fault, Size};
use std::sync::{Mutex, PoisonError};
use utoipa::ToSchema;

/// Bytes of a cache whose size is not given.
const SIZE: Size = Size(64 << 20);

const SIZE_MIN: Size = Size(1 << 20);
const SIZE_MAX: Size = Size(64 << 30);

/// Memory in front of a slower layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheOptions {
    /// Bytes of the cache: 64 MiB if not given, 1 MiB to 64 GiB, a multiple of 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

impl<L> Kind<L> for CacheOptions {
    const NAME: &'static str = "cache";
    const ABOUT: &'static str = "Keeps blocks that are read again in memory. Writes go through.";

    fn check(&self) -> Result<(), Fault> {
        let size = self.size.unwrap_or(SIZE);
        if size < SIZE_MIN || size > SIZE_MAX || !size.0.is_multiple_of(4096) {
            return Err(Fault::at_key("size", format!("{size} is not possible"))
                .hint(format!("use {SIZE_MIN} to {SIZE_MAX}, a multiple of 4KiB")));
        }
        Ok(())
    }

    fn shape(&self) -> Shape {
        // A cache begins empty, and writes have gone through.
        Shape { restarts: true, ..Shape::SAME }
    }

    fn open(&self, _: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let size = self.size.unwrap_or(SIZE);
        let none =
            |error| Fault::at_key("size", format!("there is no memory for a cache of {size}: {error}"));
        // Memory is taken here, where that may fail and take time.
        let cache = Cache::new(size.0).map_err(none)?;
        let counters = cache.counters();
        let cache = Mutex::new(Some(cache));
        // The function keeps state, so that its layer is built once.
        let built = move |_| {
            let cache = cache.lock().unwrap_or_else(PoisonError::into_inner).take();
            cache.unwrap_or_else(Cache::without_memory)
        };
        Ok(Prepared::new(built).cached(counters))
    }
}
