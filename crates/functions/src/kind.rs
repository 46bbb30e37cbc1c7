//! Trait of the options of a function that is only a layer: all that other crates need of such a function.

use crate::{CacheCounters, Devices, Groups, OnLoss, QosControl, QosLimits};
use sluice_command::Layer;
use sluice_options::Fault;
use std::fmt;
use std::sync::Arc;

/// Options of a function that is only a layer. `L` is the description of a layer below it.
///
/// Configuration, API, wiring and documentation are derived from this trait, for each kind in
/// [`layers!`](macro@crate::layers).
pub trait Kind<L> {
    /// Name of the kind, as a user writes it.
    const NAME: &'static str;
    /// Description of the function for people, one sentence.
    const ABOUT: &'static str;
    /// Layers besides the rest of the stack, at least and at most.
    const LAYERS: (usize, usize) = (0, 0);

    /// Checks the options, without the layers.
    ///
    /// # Errors
    /// Returns the first key that is wrong.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn shape(&self) -> Shape {
        Shape::SAME
    }

    /// Returns the layers below besides the rest of the stack.
    fn layers(&self) -> &[L] {
        &[]
    }

    /// Returns the layers below besides the rest of the stack, to change them.
    fn layers_mut(&mut self) -> &mut [L] {
        &mut []
    }

    /// Returns the limits that can be changed while the function runs, if it has some.
    fn limits(&self) -> Option<QosLimits> {
        None
    }

    /// Returns the limits of the function, to change them.
    fn limits_mut(&mut self) -> Option<&mut QosLimits> {
        None
    }

    /// Opens everything that the layer needs. May block.
    ///
    /// # Errors
    /// Returns the key that cannot be fulfilled.
    fn open(&self, cx: &OpenCx<'_>) -> Result<Prepared, Fault>;
}

/// Facts on the drive that a function is opened for.
#[derive(Clone, Copy, Debug)]
pub struct OpenCx<'a> {
    /// Name of the drive.
    pub drive: &'a str,
    /// Commands that the drive may have in flight.
    pub commands_max: usize,
    /// Bytes of a command's data, at most.
    pub transfer_max: u64,
    /// Groups of the daemon.
    pub groups: &'a Groups,
    /// Devices of the daemon that drives share.
    pub devices: &'a Devices,
}

/// Relation of a function to the layers below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Whether the function is as large as the layer below.
    pub keeps_size: bool,
    /// Place of the data in the layers below, in words; none if it is where it was. Stored with the drive.
    pub data: Option<String>,
    /// Whether each layer has a part of the data.
    pub is_composed: bool,
    /// Whether a second instance, on another reactor, may work on the same data at the same time.
    pub is_stateless: bool,
    /// Whether an instance in another process may go on after the last command of this one.
    pub restarts: bool,
    /// Whether the function may acknowledge a write before it is below.
    pub holds_writes: bool,
    /// Number of layers, the first ones, that have a copy of all data.
    pub copies: usize,
    /// Report of a loss of acknowledged writes in the rest of the stack.
    pub on_loss: OnLoss,
    /// Report of such a loss in a layer besides, if it has no copy.
    pub on_loss_besides: OnLoss,
    /// Set that the layers below are the members of; none if they cannot have labels.
    pub set: Option<SetShape>,
}

/// A set whose members can have labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetShape {
    /// Name of the function.
    pub kind: &'static str,
    /// Bytes of a chunk; zero for functions without chunks.
    pub chunk: u64,
    /// Whether the members must have labels, or must not be examined for labels; none if labels are optional.
    pub labels: Option<bool>,
}

impl Shape {
    /// Shape of a function that leaves the data where it is.
    pub const SAME: Self = Self {
        keeps_size: true,
        data: None,
        is_composed: false,
        is_stateless: false,
        restarts: false,
        holds_writes: false,
        copies: 0,
        on_loss: OnLoss::Through,
        on_loss_besides: OnLoss::FailFlush,
        set: None,
    };

    /// Returns the shape of a function whose data is elsewhere in the layers below.
    pub fn moved(data: String) -> Self {
        Self { keeps_size: false, data: Some(data), ..Self::SAME }
    }

    /// Returns the report of a loss in a layer besides the rest of the stack.
    pub fn on_loss_in(&self, layer: usize) -> OnLoss {
        match self.on_loss {
            OnLoss::Through => OnLoss::Through,
            _ if layer < self.copies => OnLoss::FailCommand,
            _ => self.on_loss_besides,
        }
    }
}

/// Check of the sizes of the layers below.
type Fits = dyn Fn(&[u64]) -> Result<(), Fault> + Send + Sync;

/// Function that is open. Its layer can be built on any reactor, and again for a clone of the stack.
#[derive(Clone)]
pub struct Prepared {
    make: Arc<dyn Fn(usize) -> Box<dyn Layer> + Send + Sync>,
    fits: Option<Arc<Fits>>,
    limits: Option<QosControl>,
    cache: Option<Arc<CacheCounters>>,
}

impl Prepared {
    /// Creates a prepared function from one that makes its layer over so many layers.
    pub fn new<T: Layer + 'static>(make: impl Fn(usize) -> T + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(move |below| Box::new(make(below))), fits: None, limits: None, cache: None }
    }

    /// Adds the control of limits that can be changed while the layer runs.
    #[must_use]
    pub fn limited(self, limits: QosControl) -> Self {
        Self { limits: Some(limits), ..self }
    }

    /// Adds the counters of a cache.
    #[must_use]
    pub fn cached(self, counters: Arc<CacheCounters>) -> Self {
        Self { cache: Some(counters), ..self }
    }

    /// Returns the counters of the cache, if the function is one.
    #[must_use]
    pub fn cache(&self) -> Option<&Arc<CacheCounters>> {
        self.cache.as_ref()
    }

    /// Returns the control of the limits, if the function has some.
    #[must_use]
    pub fn limits(&self) -> Option<&QosControl> {
        self.limits.as_ref()
    }

    /// Adds a check of the sizes of the layers below.
    #[must_use]
    pub fn fitting(self, fits: impl Fn(&[u64]) -> Result<(), Fault> + Send + Sync + 'static) -> Self {
        Self { fits: Some(Arc::new(fits)), ..self }
    }

    /// Checks that layers below of these sizes, the rest of the stack first, have all parts of the function's
    /// data.
    ///
    /// # Errors
    /// Returns the key that cannot be fulfilled.
    pub fn check_sizes(&self, below: &[u64]) -> Result<(), Fault> {
        self.fits.as_ref().map_or(Ok(()), |fits| fits(below))
    }

    /// Builds the layer over so many layers, the rest of the stack included.
    pub fn build(&self, below: usize) -> Box<dyn Layer> {
        (self.make)(below)
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Prepared").finish_non_exhaustive()
    }
}
