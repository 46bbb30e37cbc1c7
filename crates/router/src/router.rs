//! The stage between a namespace and its stack, which every command passes, with a program or without.

use crate::errors::Counters;
use crate::flight::Flight;
use crate::program::{Classifier, Programs, Retire};
use crate::steer::Format;
use crate::verdict::Leg;
use sluice_command::{
    Characteristics, Command, NodeId, Request, Route, Slab, Stack, Ticket, TraceStage, common_boundary,
};
use sluice_nvme::Status;
use std::fmt;

/// Reason for which a router cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterError {
    /// More paths than [`Leg::COUNT`].
    TooManyPaths,
    /// A path into a layer that the stack does not have.
    NoSuchLayer(NodeId),
    /// A number of legs at once that is not between one and [`Leg::COUNT`].
    Legs(u32),
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyPaths => write!(f, "a namespace has at most {} paths", Leg::COUNT),
            Self::NoSuchLayer(node) => write!(f, "the stack has no layer {} for a path", node.0),
            Self::Legs(legs) => write!(f, "{legs} legs at once are not possible; use 1 to {}", Leg::COUNT),
        }
    }
}

impl std::error::Error for RouterError {}

/// Builder of a router: a stack, its paths and a classifier.
pub struct RouterBuilder {
    stack: Stack,
    paths: Vec<Path>,
    classifier: Option<Box<dyn Classifier>>,
    legs_max: u32,
    errors_max: Option<u64>,
    drive: String,
    retire: Retire,
    detached: Callback,
}

/// Callback, run on the reactor.
type Callback = Box<dyn FnMut() + Send>;

impl RouterBuilder {
    /// Creates a builder. The stack's root is the first path, and every command takes it until there is a
    /// classifier.
    pub fn new(stack: Stack) -> Self {
        Self {
            paths: vec![Path { entry: stack.root(), beyond: false }],
            stack,
            classifier: None,
            legs_max: 1,
            errors_max: None,
            drive: String::new(),
            retire: Box::new(drop),
            detached: Box::new(|| ()),
        }
    }

    /// Adds a path that enters the stack at `entry`, and whose legs stay inside the namespace.
    pub fn path(self, entry: NodeId) -> Result<Self, RouterError> {
        self.add_path(Path { entry, beyond: false })
    }

    /// Adds a path whose legs may reach all of the layer that it enters, even beyond the namespace: for
    /// programs that map blocks themselves.
    pub fn path_beyond(self, entry: NodeId) -> Result<Self, RouterError> {
        self.add_path(Path { entry, beyond: true })
    }

    fn add_path(mut self, path: Path) -> Result<Self, RouterError> {
        let entry = path.entry;
        if self.paths.len() == Leg::COUNT {
            return Err(RouterError::TooManyPaths);
        }
        if self.stack.characteristics_at(entry).is_none() {
            return Err(RouterError::NoSuchLayer(entry));
        }
        self.paths.push(path);
        Ok(self)
    }

    pub fn classifier(mut self, classifier: Box<dyn Classifier>) -> Self {
        self.classifier = Some(classifier);
        self
    }

    /// Sets the number of legs that a command may have in flight at once; the default is one. Slots for the
    /// legs are reserved in the drive's slab, for every command it can have.
    pub fn legs(mut self, legs: u32) -> Result<Self, RouterError> {
        if legs == 0 || legs as usize > Leg::COUNT {
            return Err(RouterError::Legs(legs));
        }
        self.legs_max = legs;
        Ok(self)
    }

    /// Sets the number of errors after which a program is detached. By default it never is: only the operator
    /// can decide that commands may take the first path unclassified.
    pub fn errors_max(mut self, errors: u64) -> Self {
        self.errors_max = Some(errors);
        self
    }

    /// Sets the drive's name, for messages.
    pub fn drive(mut self, name: impl Into<String>) -> Self {
        self.drive = name.into();
        self
    }

    /// Sets a callback for every program whose last command is done, on the reactor: to read its maps, or to
    /// send it to a thread on which dropping it may take time. By default programs are dropped.
    pub fn on_retired(mut self, retire: impl FnMut(Box<dyn Classifier>) + Send + 'static) -> Self {
        self.retire = Box::new(retire);
        self
    }

    /// Sets a callback for a program that was detached for its errors, on the reactor: to store that state.
    pub fn on_detached(mut self, notify: impl FnMut() + Send + 'static) -> Self {
        self.detached = Box::new(notify);
        self
    }

    pub fn build(self) -> Router {
        let characteristics = self.stack.characteristics();
        let format = Format::new(0, characteristics.block_size);
        let mut programs = Programs::new(self.retire);
        programs.replace(self.classifier);
        let mut router = Router {
            stack: self.stack,
            paths: self.paths,
            path_bounds: Vec::new(),
            characteristics,
            format,
            legs_max: self.legs_max,
            errors_max: self.errors_max,
            drive: self.drive,
            detached: self.detached,
            programs,
            flights: Vec::new(),
            done: Vec::new(),
            stopped: Vec::new(),
            returned: Vec::new(),
            counters: Counters::default(),
        };
        router.derive();
        router
    }
}

impl fmt::Debug for RouterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterBuilder").field("stack", &self.stack).finish_non_exhaustive()
    }
}

/// A path as it was configured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) entry: NodeId,
    /// The path's legs may leave the namespace.
    beyond: bool,
}

/// A path with the bounds of its legs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathBounds {
    pub(crate) entry: NodeId,
    /// Bytes that a leg may reach: never beyond the layer it enters, nor beyond the namespace unless the path
    /// is for that.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
}

impl PathBounds {
    /// Returns the status of a leg that may not take this path, or none. The last check of an address is the
    /// one that counts, independent of the program and of the namespace's size when the command arrived.
    #[inline]
    pub(crate) fn refuses(&self, request: &Request) -> Option<Status> {
        if request.end() > self.size {
            Some(Status::LBA_OUT_OF_RANGE)
        } else if self.read_only && request.operation.modifies() {
            Some(Status::NAMESPACE_WRITE_PROTECTED)
        } else {
            None
        }
    }
}

/// Classifier of a namespace and the paths it can choose.
pub struct Router {
    pub(crate) stack: Stack,
    pub(crate) paths: Vec<Path>,
    /// Bounds of the paths, derived from the layers that they enter.
    pub(crate) path_bounds: Vec<PathBounds>,
    characteristics: Characteristics,
    pub(crate) format: Format,
    pub(crate) legs_max: u32,
    pub(crate) errors_max: Option<u64>,
    pub(crate) drive: String,
    pub(crate) detached: Callback,
    pub(crate) programs: Programs,
    /// State of the commands that a program decides on, by the number of their slot.
    pub(crate) flights: Vec<Flight>,
    /// Commands that finished without coming back from the stack.
    pub(crate) done: Vec<Command>,
    /// Legs that were not let into the stack.
    pub(crate) stopped: Vec<Command>,
    /// Scratch list, empty outside of [`run_completions`](Self::run_completions).
    returned: Vec<Command>,
    pub(crate) counters: Counters,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("stack", &self.stack)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl Router {
    /// Takes a command. Finished commands are returned by [`run_completions`](Self::run_completions).
    #[inline]
    pub fn submit(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        match self.programs.is_attached() {
            true => self.begin(command, false, slab, now_ns),
            false => self.take_first_path(command, slab, now_ns),
        }
    }

    /// Takes a command as [`submit`](Self::submit) does, and notes the stages of a traced command.
    #[cold]
    pub fn submit_traced(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        match self.programs.is_attached() {
            true => self.begin_with::<true>(command, false, slab, now_ns),
            false => {
                slab.note_stage(&command, TraceStage::Sent(Leg::FIRST.number()));
                self.take_first_path(command, slab, now_ns);
            }
        }
    }

    /// Takes a command of the drive itself, down the first path without running a program.
    pub fn submit_unclassified(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        self.take_first_path(command, slab, now_ns);
    }

    /// Takes a further step of a command that has several, such as the next range of a Dataset Management. To
    /// a classifier each step is a command: a verdict on one range does not apply to the next.
    pub fn resubmit(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        // The verdict on the last step does not apply to this one.
        slab.slot_mut(&command).route = Route::default();
        match self.programs.is_attached() {
            true => self.begin(command, true, slab, now_ns),
            false => self.take_first_path(command, slab, now_ns),
        }
    }

    #[inline]
    pub(crate) fn take_first_path(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        // Checked at each step: the namespace may have become smaller since the command was taken.
        if slab.slot(&command).request.end() > self.format.size {
            return self.refuse(command, slab);
        }
        self.stack.submit(self.stack.root(), command, slab, now_ns);
    }

    /// Takes a command that is passed to a device as its host wrote it. A command of the admin queue does not
    /// reach programs, to which an opcode is one of the I/O command set.
    pub fn pass(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        let is_io = slab.slot(&command).origin.sq != 0;
        match is_io && self.programs.is_attached() {
            true => self.begin(command, false, slab, now_ns),
            false => self.pass_first_path(command, slab, now_ns),
        }
    }

    #[cold]
    pub(crate) fn pass_first_path(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        if slab.slot(&command).request.end() > self.format.size {
            return self.refuse(command, slab);
        }
        self.stack.pass(self.stack.root(), command, slab, now_ns);
    }

    #[cold]
    fn refuse(&mut self, command: Command, slab: &mut Slab) {
        slab.slot_mut(&command).status = Status::LBA_OUT_OF_RANGE;
        self.done.push(command);
    }

    /// Processes all commands between the layers, and appends the finished commands to `done`.
    #[inline]
    pub fn run_completions(&mut self, slab: &mut Slab, now_ns: u64, done: &mut Vec<Command>) {
        let first = done.len();
        self.stack.run_completions(slab, now_ns, done);
        if !self.programs.is_idle() {
            self.drain_legs(first, slab, now_ns, done);
        }
        if !self.done.is_empty() {
            done.append(&mut self.done);
        }
    }

    /// Takes the legs out of the finished commands, and continues with their commands until none moves.
    // A function of its own, so that commands without a program do not carry its registers.
    #[inline(never)]
    fn drain_legs(&mut self, first: usize, slab: &mut Slab, now_ns: u64, done: &mut Vec<Command>) {
        let mut returned = std::mem::take(&mut self.returned);
        let mut from = first;
        loop {
            self.take_legs(from, slab, done, &mut returned);
            if !self.stopped.is_empty() {
                returned.append(&mut self.stopped);
            }
            if returned.is_empty() {
                break;
            }
            for leg in returned.drain(..) {
                self.leg_returned(leg, slab, now_ns);
            }
            from = done.len();
            self.stack.run_completions(slab, now_ns, done);
        }
        self.returned = returned;
    }

    /// Moves the legs among the commands that came back from the stack to `legs`. Commands that are over stay
    /// in `back`.
    fn take_legs(&mut self, from: usize, slab: &mut Slab, back: &mut Vec<Command>, legs: &mut Vec<Command>) {
        let mut index = from;
        while let Some(command) = back.get(index) {
            match self.is_over(command, slab) {
                true => index += 1,
                false => legs.push(back.swap_remove(index)),
            }
        }
    }

    /// Attaches `classifier` for all later commands. If there is a classifier already, the new one is
    /// returned.
    pub fn attach(&mut self, classifier: Box<dyn Classifier>) -> Result<(), Box<dyn Classifier>> {
        if self.programs.is_attached() {
            return Err(classifier);
        }
        self.programs.replace(Some(classifier));
        Ok(())
    }

    /// Replaces the classifier for all later commands. Commands in flight finish with the one they began
    /// with, which retires when its last command is done or does not need it any more. A command that was
    /// sent down a path unchanged, without a later hook, does not need it.
    pub fn replace(&mut self, classifier: Box<dyn Classifier>) {
        self.programs.replace(Some(classifier));
    }

    /// Detaches the classifier: later commands take the first path; commands in flight finish as with
    /// [`replace`](Self::replace).
    pub fn detach(&mut self) {
        self.programs.replace(None);
    }

    /// Sets the number of errors after which a program is detached; none for never.
    pub fn set_errors_max(&mut self, errors: Option<u64>) {
        self.errors_max = errors;
    }

    pub fn is_attached(&self) -> bool {
        self.programs.is_attached()
    }

    /// Delivers an engine's answer to a layer of the stack.
    pub fn event(&mut self, at: NodeId, ticket: Ticket, result: i32, slab: &mut Slab, now_ns: u64) {
        self.stack.event(at, ticket, result, slab, now_ns);
    }

    pub fn deadline_ns(&self) -> Option<u64> {
        self.stack.deadline_ns()
    }

    pub fn expire(&mut self, slab: &mut Slab, now_ns: u64) {
        self.stack.expire(slab, now_ns);
    }

    /// Returns the layers, for operations on no command.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the layers for changing them. Finished commands are returned by
    /// [`run_completions`](Self::run_completions).
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Sets the bytes of the target.
    pub fn resize(&mut self, size: u64) {
        self.stack.resize(size);
        self.derive();
    }

    /// Sets the format of the namespace for its host; the contexts of classifiers use it.
    pub fn set_format(&mut self, nsid: u32, block_size: u32) {
        self.format = Format::new(nsid, block_size).with_size(self.format.size, self.format.reach);
        self.stack.formatted(block_size);
    }

    /// Derives the bounds and the characteristics from the layers anew.
    pub(crate) fn derive(&mut self) {
        let root = self.stack.characteristics();
        let mut all = Characteristics { fan_out: 0, ..root };
        self.path_bounds.clear();
        for &Path { entry, beyond } in &self.paths {
            let layer = self.stack.characteristics_at(entry).unwrap_or(root);
            all.block_size = all.block_size.max(layer.block_size);
            all.atomic_write = all.atomic_write.min(layer.atomic_write);
            all.atomic_boundary = common_boundary(all.atomic_boundary.into(), layer.atomic_boundary.into());
            all.volatile_cache |= layer.volatile_cache;
            let limits =
                [all.deallocate_limit, layer.deallocate_limit].into_iter().filter(|limit| *limit > 0);
            all.deallocate_limit = limits.min().unwrap_or(0);
            all.fan_out = all.fan_out.max(layer.fan_out);
            // An admin command takes the first path, without a program.
            all.passthrough.io = all.passthrough.io.union(layer.passthrough.io);
            let size = if beyond { layer.size } else { layer.size.min(root.size) };
            self.path_bounds.push(PathBounds { entry, size, read_only: layer.read_only });
        }
        if self.legs_max > 1 {
            // Legs at once are children, and each may have children of its own.
            all.fan_out = all.fan_out.saturating_add(1).saturating_mul(self.legs_max);
        }
        self.characteristics = all;
        let reach = self.path_bounds.iter().map(|bounds| bounds.size).fold(root.size, u64::max);
        self.format = self.format.with_size(root.size, reach);
    }

    /// Returns the characteristics of the namespace for all paths. The size is the first path's.
    pub fn characteristics(&self) -> Characteristics {
        self.characteristics
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the layers' kinds, topmost first.
    pub fn layers(&self) -> impl Iterator<Item = &'static str> {
        self.stack.names()
    }
}
