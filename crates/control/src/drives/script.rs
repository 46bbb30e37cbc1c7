//! Drives without storage that only record calls, for tests of the code above them.
#![allow(missing_debug_implementations, clippy::new_without_default)] // Parts of tests.

use super::*;
use crate::state::{Disk, FileSystem};
use sluice_controller::{AnaRule, PersistentRecord, Synced};
use sluice_functions::{GroupRefused, GroupStatus, QosLimits, QosWaits};
use sluice_spec::error::Kind;
use sluice_spec::size::Size;
use sluice_spec::{AnaStateName, ClassifierSpec, UifSpec};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// An engine of drives that only record calls. Its fields make calls fail or wait.
#[derive(Default)]
pub struct Script {
    pub open: Mutex<HashMap<String, Arc<Played>>>,
    /// Number of drives that were opened.
    pub generations: AtomicU64,
    pub refuse_open: Mutex<Vec<String>>,
    pub refuse_resize: AtomicBool,
    /// Whether each program fails the verifier.
    pub refuse_program: AtomicBool,
    /// Whether no function can be moved, attached or detached.
    pub refuse_move: AtomicBool,
    /// A target is replaced when hosts see its namespace as inaccessible, at last.
    pub replaces_late: AtomicBool,
    /// A folder that is created when a function is moved. No change can be stored from then on.
    pub break_at_move: Mutex<Option<std::path::PathBuf>>,
    /// Whether no program can be activated.
    pub refuse_classifier: AtomicBool,
    /// Set by each open, which then waits for the lock `hang_open`.
    pub opening: AtomicBool,
    pub hang_open: Mutex<()>,
    /// The drive whose open waits; none if each open waits.
    pub hangs: Mutex<Option<String>>,
    /// Whether flushes of drives that end never complete, and the number of flushes that began.
    pub hang_sync: AtomicBool,
    pub syncs: AtomicU32,
    /// Lock that the drop of the last reference to a drive waits for.
    pub hang_drop: Mutex<()>,
    pub dropping: AtomicBool,
    /// Set by each move, which then waits for the lock `hang_move`.
    pub moving: AtomicBool,
    pub hang_move: Mutex<()>,
    /// Set by each creation of a namespace, which then waits for the lock `hang_make`.
    pub making: AtomicBool,
    pub hang_make: Mutex<()>,
    pub refuse_make: AtomicBool,
    /// Number of opens that fail because something is in use.
    pub lingering: AtomicU32,
    /// Number of drives on the network that must be opened in parallel, else each of their opens fails.
    pub side_by_side: AtomicU32,
    pub far: AtomicU32,
    /// Drives that were open before the first open of a drive on the network.
    pub before_far: Mutex<Vec<String>>,
    /// Sizes of the pools that were grown, and whether none grows.
    pub grown: Mutex<BTreeMap<String, Size>>,
    pub refuse_growth: AtomicBool,
    /// Groups with their limits.
    pub groups: Mutex<BTreeMap<String, QosLimits>>,
}

impl Script {
    /// Waits as the open of a drive on the network does, until enough of them are opened in parallel.
    fn ask_far(&self) -> Result<(), ApiError> {
        if self.far.fetch_add(1, SeqCst) == 0 {
            *lock(&self.before_far) = lock(&self.open).keys().cloned().collect();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.far.load(SeqCst) < self.side_by_side.load(SeqCst) {
            if Instant::now() > deadline {
                return Err(ApiError::internal("nobody answers"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

pub struct Played {
    pub script: Arc<Script>,
    pub name: String,
    pub generation: u64,
    pub sizes: Mutex<Vec<Size>>,
    pub classifier: Mutex<Option<ClassifierSpec>>,
    /// Namespaces that the classifier is detached from.
    pub detached: Mutex<Vec<u32>>,
    /// Stored state that the drive was opened with.
    pub remembered: Remembered,
    /// States of the drive's ANA groups.
    pub ana: Mutex<Vec<AnaRule>>,
    /// Results of stores for the drive's controller.
    pub kept: Mutex<Vec<bool>>,
    /// NSIDs whose targets are paused.
    pub paused: Mutex<Vec<u32>>,
    pub connected: AtomicBool,
    pub in_flight: AtomicU32,
    pub draining: AtomicBool,
}

impl Drop for Played {
    fn drop(&mut self) {
        self.script.dropping.store(true, SeqCst);
        drop(lock(&self.script.hang_drop));
    }
}

impl Engine for Arc<Script> {
    fn shared(&self) -> Result<Vec<SharedView>, ApiError> {
        let view = |(name, size): (&String, &Size)| SharedView {
            name: name.clone(),
            size: *size,
            ..SharedView::default()
        };
        Ok(lock(&self.grown).iter().map(view).collect())
    }

    fn plan_growth(&self, _: &str, size: Option<Size>) -> Result<Size, ApiError> {
        match size {
            Some(size) if size > Size(MIB << 10) => Err(ApiError::invalid("it is too large")),
            size => Ok(size.unwrap_or(Size(MIB))),
        }
    }

    fn grow_shared(&self, pool: &str, size: Size) -> Result<(), ApiError> {
        if self.refuse_growth.load(SeqCst) {
            return Err(ApiError::internal("the file system is full"));
        }
        lock(&self.grown).insert(pool.to_owned(), size);
        Ok(())
    }

    fn set_group(&self, name: &str, limits: QosLimits) -> Result<(), GroupRefused> {
        lock(&self.groups).insert(name.to_owned(), limits);
        Ok(())
    }

    fn remove_group(&self, name: &str) -> Result<(), GroupRefused> {
        lock(&self.groups).remove(name);
        Ok(())
    }

    fn groups(&self) -> Vec<GroupStatus> {
        let groups = lock(&self.groups);
        let status = |(name, limits): (&String, &QosLimits)| GroupStatus {
            name: name.clone(),
            limits: *limits,
            members: 0,
            waits: QosWaits::default(),
        };
        groups.iter().map(status).collect()
    }

    fn open(
        &self,
        spec: &DriveSpec,
        _reactor: usize,
        remembered: &Remembered,
    ) -> Result<Arc<dyn Running>, ApiError> {
        self.opening.store(true, SeqCst);
        if lock(&self.hangs).as_ref().is_none_or(|name| *name == spec.name) {
            drop(lock(&self.hang_open));
        }
        if lock(&self.refuse_open).contains(&spec.name) {
            return Err(ApiError::internal("the disk is not there"));
        }
        if spec.is_remote() {
            self.ask_far()?;
        }
        if self.lingering.fetch_update(SeqCst, SeqCst, |tries| tries.checked_sub(1)).is_ok() {
            return Err(ApiError::new(Kind::InUse, "another process serves it"));
        }
        let drive = Arc::new(Played {
            script: Arc::clone(self),
            name: spec.name.clone(),
            generation: self.generations.fetch_add(1, SeqCst),
            sizes: Mutex::new(spec.namespaces.iter().map(|n| n.size.unwrap_or_default()).collect()),
            classifier: Mutex::new(spec.classifier.clone()),
            detached: Mutex::new(remembered.detached.clone()),
            remembered: remembered.clone(),
            ana: Mutex::new(remembered.ana.clone()),
            kept: Mutex::default(),
            paused: Mutex::new(remembered.paused_targets.iter().map(|(nsid, _)| *nsid).collect()),
            connected: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            draining: AtomicBool::new(false),
        });
        lock(&self.open).insert(spec.name.clone(), Arc::clone(&drive));
        Ok(drive)
    }

    fn reactors(&self) -> Vec<ReactorCounters> {
        Vec::new()
    }
}

impl Running for Played {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn status(&self) -> Result<Status, ApiError> {
        Ok(Status {
            connected: self.connected.load(SeqCst),
            in_flight: self.in_flight.load(SeqCst),
            drained: self.draining.load(SeqCst) && self.in_flight.load(SeqCst) == 0,
            sizes: lock(&self.sizes).clone(),
            ..Status::default()
        })
    }

    fn resize(&self, nsid: u32, size: Size) -> Result<(), ApiError> {
        if self.script.refuse_resize.load(SeqCst) {
            return Err(ApiError::internal("no room"));
        }
        lock(&self.sizes)[nsid as usize - 1] = size;
        Ok(())
    }

    fn set_ana(&self, rules: Vec<AnaRule>) -> Result<(), ApiError> {
        *lock(&self.ana) = rules;
        Ok(())
    }

    fn prepare_classifier(
        &self,
        spec: Option<&ClassifierSpec>,
        _fresh_maps: bool,
    ) -> Result<ReadyClassifier<'_>, ApiError> {
        if spec.is_some() && self.script.refuse_program.load(SeqCst) {
            return Err(ApiError::invalid("it is no program"));
        }
        let spec = spec.cloned();
        Ok(Box::new(move || {
            if self.script.refuse_classifier.load(SeqCst) {
                return Err(ApiError::internal("no reactor"));
            }
            *lock(&self.classifier) = spec;
            lock(&self.detached).clear();
            Ok(())
        }))
    }

    fn classifier(&self) -> Result<Option<ClassifierStatus>, ApiError> {
        let status = |spec: ClassifierSpec| ClassifierStatus {
            object: spec.object.display().to_string(),
            digest: crate::object_file::digest(&std::fs::read(&spec.object).unwrap_or_default()),
            detached: lock(&self.detached).clone(),
            section: spec.section,
            errors_max: spec.errors_max,
            precise_clock: spec.precise_clock,
            ..ClassifierStatus::default()
        };
        Ok(lock(&self.classifier).clone().map(status))
    }

    fn maps(&self) -> Option<Vec<Arc<sluice_classifier::Map>>> {
        lock(&self.classifier).as_ref().map(|_| Vec::new())
    }

    fn move_function(&self, _number: usize, _spec: &UifSpec) -> Result<(), ApiError> {
        if let Some(folder) = lock(&self.script.break_at_move).take() {
            std::fs::create_dir(folder).expect("room on the disk");
        }
        match self.script.refuse_move.load(SeqCst) {
            true => Err(ApiError::conflict("it does not leave")),
            false => Ok(()),
        }
    }

    fn attach_function(
        &self,
        _spec: &DriveSpec,
        _nsid: u32,
        _at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        store()?;
        self.move_function(0, &UifSpec::default())
    }

    fn detach_function(
        &self,
        _spec: &DriveSpec,
        _nsid: u32,
        _at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        store()?;
        self.move_function(0, &UifSpec::default())
    }

    fn pause_target(&self, _spec: &DriveSpec, nsid: u32, _limit: Option<Duration>) -> Result<(), ApiError> {
        lock(&self.paused).push(nsid);
        Ok(())
    }

    fn is_target_idle(&self, nsid: u32) -> Result<bool, ApiError> {
        Ok(lock(&self.paused).contains(&nsid))
    }

    fn resume_target(&self, nsid: u32) -> Result<(), ApiError> {
        lock(&self.paused).retain(|paused| *paused != nsid);
        Ok(())
    }

    fn replace_target(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        may_differ: bool,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        assert!(lock(&self.paused).contains(&nsid), "nothing reaches the target meanwhile");
        if !may_differ {
            return Err(differs());
        }
        let is_shown =
            || lock(&self.ana).last().is_some_and(|rule| rule.state == AnaStateName::Inaccessible.state());
        let mut looks = 0;
        while self.script.replaces_late.load(SeqCst) && !is_shown() {
            looks += 1;
            assert!(looks < 20_000, "hosts see the Change state without a limit");
            std::thread::sleep(Duration::from_millis(1));
        }
        store()?;
        if self.script.refuse_move.load(SeqCst) {
            return Err(ApiError::conflict("it still has something under way"));
        }
        let size = spec.namespace(nsid).and_then(|namespace| namespace.size);
        lock(&self.sizes)[nsid as usize - 1] = size.unwrap_or_default();
        Ok(())
    }

    fn persisted(&self, _what: sluice_controller::PersistentRecord, well: bool) -> Result<(), ApiError> {
        lock(&self.kept).push(well);
        Ok(())
    }

    fn move_to(&self, _reactor: usize, _limit: std::time::Duration) -> Result<(), ApiError> {
        self.script.moving.store(true, SeqCst);
        drop(lock(&self.script.hang_move));
        Ok(())
    }

    fn create_namespace(
        &self,
        _spec: &DriveSpec,
        _created: &crate::state::Created,
        _creation: sluice_controller::Creation,
    ) -> Result<(), ApiError> {
        self.script.making.store(true, SeqCst);
        drop(lock(&self.script.hang_make));
        if self.script.refuse_make.load(SeqCst) {
            return Err(ApiError::conflict("its layers make too many commands"));
        }
        Ok(())
    }

    fn drain(&self) -> Result<(), ApiError> {
        self.draining.store(true, SeqCst);
        Ok(())
    }

    fn sync(&self, limit: Duration, hurry: &AtomicBool) -> Result<Synced, ApiError> {
        self.script.syncs.fetch_add(1, SeqCst);
        let began = Instant::now();
        while self.script.hang_sync.load(SeqCst) {
            if hurry.load(SeqCst) || began.elapsed() >= limit {
                return Err(ApiError::internal("a flush did not end"));
            }
            std::thread::yield_now();
        }
        Ok(Synced { is_durable: true, ..Synced::default() })
    }

    fn close(&self) -> Result<(), ApiError> {
        lock(&self.script.open).remove(&self.name);
        Ok(())
    }
}

pub const MIB: u64 = 1 << 20;

/// A daemon's drives, and the folder that outlives them.
pub struct Stage {
    pub folder: tempfile::TempDir,
    pub script: Arc<Script>,
    /// The disk that stores the state, if not the file system.
    pub disk: Option<Arc<dyn Disk>>,
}

impl Stage {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), script: Arc::default(), disk: None }
    }

    pub fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    pub fn prepare(&self, config: &str) -> Result<(Drives, Vec<(DriveSpec, Origin)>), ApiError> {
        let config = crate::config::parse(config, Path::new("/etc/sluice.toml")).expect("a configuration");
        let at = |name: &str| Some(self.folder.path().join(name));
        let places = Places::resolve(at("api"), at("drives"), at("state")).expect("places");
        let state =
            StateFile::open_on(&self.state(), self.disk.clone().unwrap_or_else(|| Arc::new(FileSystem)))?;
        Drives::prepare(&config, places, state, Box::new(Arc::clone(&self.script)))
    }

    pub fn try_start(&self, config: &str) -> Result<Drives, ApiError> {
        let (drives, specs) = self.prepare(config)?;
        drives.open_all(specs);
        Ok(drives)
    }

    /// Returns a record that a drive's controller needs stored.
    pub fn order(&self, drive: &str, what: PersistentRecord) -> PersistRequest {
        PersistRequest { drive: drive.to_owned(), generation: self.played(drive).generation, what }
    }

    pub fn start(&self, config: &str) -> Drives {
        self.try_start(config).expect("nothing is wrong")
    }

    pub fn played(&self, name: &str) -> Arc<Played> {
        Arc::clone(&lock(&self.script.open)[name])
    }

    /// Makes each later store fail, even for root.
    pub fn break_disk(&self) {
        self.in_the_way().iter().for_each(|path| std::fs::create_dir(path).expect("room on the disk"));
    }

    /// Lets stores succeed again.
    pub fn mend_disk(&self) {
        self.in_the_way().iter().for_each(|path| std::fs::remove_dir(path).expect("it was broken"));
    }

    fn in_the_way(&self) -> [std::path::PathBuf; 2] {
        ["drives.state.new", "hosts/fixed.state.new"].map(|name| self.state().join(name))
    }
}

pub fn spec(name: &str) -> DriveSpec {
    let text = format!(r#"{{"name": "{name}", "namespaces": [{{"target": "memory", "size": {MIB}}}]}}"#);
    serde_json::from_str(&text).expect("a spec")
}

pub const DECLARED: &str =
    "[[drive]]\nname = \"fixed\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";
