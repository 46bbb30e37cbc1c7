//! Runs the classifier at its hooks, checks its verdicts and starts legs.

use crate::{Classifier, Decision, Facts, Hook, Path};
use sluice_command::{Characteristics, Command, NodeId, Slab, Stack, Ticket};
use sluice_nvme::{Status, SubmissionEntry};
use std::fmt;

/// Why a router cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterError {
    /// A namespace has at most this many paths besides the first.
    TooManyPaths,
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyPaths => write!(f, "a namespace has at most {} paths", Router::PATHS_MAX),
        }
    }
}

impl std::error::Error for RouterError {}

/// What went wrong with verdicts, for whoever watches the classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Verdicts that could not be carried out; each failed its command with an internal error.
    pub impossible: u64,
}

/// Builds a router: a stack, its paths and a classifier.
pub struct RouterBuilder {
    stack: Stack,
    paths: Vec<NodeId>,
    classifier: Option<Box<dyn Classifier>>,
}

impl RouterBuilder {
    /// The stack's root is the first path, and every command takes it until there is a classifier.
    pub fn new(stack: Stack) -> Self {
        Self { paths: vec![stack.root()], stack, classifier: None }
    }

    /// A further path, entering the stack at `entry`.
    pub fn path(mut self, entry: NodeId) -> Result<Self, RouterError> {
        if self.paths.len() == Router::PATHS_MAX {
            return Err(RouterError::TooManyPaths);
        }
        self.paths.push(entry);
        Ok(self)
    }

    pub fn classifier(mut self, classifier: Box<dyn Classifier>) -> Self {
        self.classifier = Some(classifier);
        self
    }

    pub fn build(self) -> Router {
        let size = self.stack.characteristics().size;
        Router {
            stack: self.stack,
            paths: self.paths,
            classifier: self.classifier,
            size,
            done: Vec::new(),
            counters: Counters::default(),
        }
    }
}

impl fmt::Debug for RouterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterBuilder").field("stack", &self.stack).finish_non_exhaustive()
    }
}

/// One namespace's classifier and the paths it can choose.
pub struct Router {
    stack: Stack,
    paths: Vec<NodeId>,
    /// None sends every command down the first path, as [`Direct`](crate::Direct) would.
    classifier: Option<Box<dyn Classifier>>,
    /// Bytes of the namespace: every leg is checked against it after the verdict.
    size: u64,
    /// Commands that finished without entering the stack.
    done: Vec<Command>,
    counters: Counters,
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
    /// Paths a classifier can choose from.
    pub const PATHS_MAX: usize = 7;

    /// The submission hook, and the leg it asks for. `entry` is the command's, as the slab holds it.
    /// What finishes is found in [`settle`](Self::settle).
    #[inline]
    pub fn submit(&mut self, command: Command, entry: &SubmissionEntry, slab: &mut Slab, now_ns: u64) {
        match self.classifier {
            None => self.start(Path::FIRST, command, slab, now_ns),
            Some(_) => self.classify(command, entry, slab, now_ns),
        }
    }

    fn classify(&mut self, command: Command, entry: &SubmissionEntry, slab: &mut Slab, now_ns: u64) {
        let Some(classifier) = &mut self.classifier else {
            return self.start(Path::FIRST, command, slab, now_ns);
        };
        let verdict = classifier.classify(&Facts::new(Hook::Submission, entry, slab.slot(&command)));
        let route = &mut slab.slot_mut(&command).route;
        route.before_completion = verdict.before_completion;
        route.cookie = verdict.cookie;
        match verdict.decision {
            Decision::Send(path) => {
                route.path = path.0;
                self.start(path, command, slab, now_ns);
            }
            Decision::Complete(status) => self.finish(command, status, slab),
        }
    }

    #[inline]
    fn start(&mut self, path: Path, command: Command, slab: &mut Slab, now_ns: u64) {
        let Some(entry) = self.paths.get(usize::from(path.0)) else {
            self.counters.impossible += 1;
            return self.finish(command, Status::INTERNAL_ERROR, slab);
        };
        // Every address is checked here, after the verdict and at each step: the namespace may have
        // become smaller since the command was taken.
        if slab.slot(&command).request.end() > self.size {
            return self.finish(command, Status::LBA_OUT_OF_RANGE, slab);
        }
        self.stack.submit(*entry, command, slab, now_ns);
    }

    fn finish(&mut self, command: Command, status: Status, slab: &mut Slab) {
        slab.slot_mut(&command).status = status;
        self.done.push(command);
    }

    /// Goes on with a command past the classifier: a further step of a command that takes several,
    /// such as the next range of a Dataset Management, follows the path of its first.
    pub fn resubmit(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        let path = Path(slab.slot(&command).route.path);
        self.start(path, command, slab, now_ns);
    }

    /// Works off what moves between the layers, and appends the finished commands to `done`.
    #[inline]
    pub fn settle(&mut self, slab: &mut Slab, now_ns: u64, done: &mut Vec<Command>) {
        let first = done.len();
        self.stack.settle(slab, now_ns, done);
        if !self.done.is_empty() {
            done.append(&mut self.done);
        }
        if self.classifier.is_none() {
            return;
        }
        for command in &done[first..] {
            if slab.slot(command).route.before_completion {
                self.before_completion(command, slab);
            }
        }
    }

    /// The last hook: it may change the status and nothing else.
    fn before_completion(&mut self, command: &Command, slab: &mut Slab) {
        let Some(classifier) = &mut self.classifier else { return };
        let slot = slab.slot(command);
        let facts = Facts::new(Hook::BeforeCompletion(slot.status), slab.entry(command), slot);
        let verdict = classifier.classify(&facts);
        let slot = slab.slot_mut(command);
        slot.route.before_completion = false;
        slot.status = match verdict.decision {
            Decision::Complete(status) => status,
            Decision::Send(_) => {
                self.counters.impossible += 1;
                Status::INTERNAL_ERROR
            }
        };
    }

    /// An engine answered for a layer of the stack.
    pub fn event(&mut self, at: NodeId, ticket: Ticket, result: i32, slab: &mut Slab, now_ns: u64) {
        self.stack.event(at, ticket, result, slab, now_ns);
    }

    pub fn deadline_ns(&self) -> Option<u64> {
        self.stack.deadline_ns()
    }

    pub fn expire(&mut self, slab: &mut Slab, now_ns: u64) {
        self.stack.expire(slab, now_ns);
    }

    /// The target now has `size` bytes.
    pub fn resize(&mut self, size: u64) {
        self.stack.resize(size);
        self.size = self.stack.characteristics().size;
    }

    pub fn characteristics(&self) -> Characteristics {
        self.stack.characteristics()
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The layers' kinds, topmost first.
    pub fn layers(&self) -> impl Iterator<Item = &'static str> {
        self.stack.names()
    }
}
