//! The file target as storage of a simulated drive: real files, a real ring.

use crate::remote::{Remote, Service};
use sluice_command::{Layer, Stack};
use sluice_reactor::{Io, ReactorHandle};
use sluice_sim::SimEngine;
use sluice_targets::{FileConfig, PreparedFile};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A folder that is removed at the end of the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(parent: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-sim-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = parent.join(name);
        fs::create_dir(&path).expect("a temporary folder can be written");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that remains identifies its test.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file that outlives the controllers over it, as disks do.
pub(crate) struct FileDisk {
    reactor: ReactorHandle,
    config: FileConfig,
    service: RefCell<Option<Arc<Mutex<Service>>>>,
}

impl FileDisk {
    pub(crate) fn new(reactor: ReactorHandle, config: FileConfig) -> Self {
        Self { reactor, config, service: RefCell::new(None) }
    }

    /// Opens the file anew: its previous user is gone, and the operations of that are done or failed.
    pub(crate) fn stack(&self, engine: &SimEngine) -> Stack {
        if let Some(before) = self.service.take() {
            assert!(before.lock().expect("not poisoned").close(), "nothing is in flight");
        }
        let seed = PreparedFile::open(&self.config).expect("nobody else has the file");
        let build = move |task, io: &Io| -> Box<dyn Layer> {
            Box::new(seed.build(task, io, 0).expect("room for two files"))
        };
        let service = Arc::new(Mutex::new(Service::open(&self.reactor, build)));
        *self.service.borrow_mut() = Some(Arc::clone(&service));
        Remote::stack(service, engine)
    }
}
