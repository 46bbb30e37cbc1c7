//! Work of the drive that outlives a command's first step: it is persisted, waits for other commands, or runs in
//! the background.

pub(crate) mod background;
pub(crate) mod erase;
pub(crate) mod format;
pub(crate) mod history;
pub(crate) mod losses;
pub(crate) mod management;
pub(crate) mod orders;
pub(crate) mod persist;
pub(crate) mod sanitize;
pub(crate) mod self_test;
pub(crate) mod uncorrectable;
