//! Trait of a function that is written against the function SDK, and its record in the registry.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_command::Request;
use sluice_crypt::Given;
use sluice_uif::{Data, Function, Io, Options};
use std::fmt;
use std::sync::Arc;

/// A function of Sluice's own behind the function SDK. All that other crates need of it is derived from here.
pub trait Service {
    /// Name of the function, as a user writes it.
    const NAME: &'static str;
    /// Description of the function for people, one sentence.
    const ABOUT: &'static str;
    const OPTIONS: &'static [Item] = &[];
    const ORDERS: &'static [Item] = &[];
    const METRICS: &'static [Metric] = &[];
    /// Layers besides the rest of the stack, at least and at most.
    const LAYERS: (usize, usize) = (0, 0);
    /// Report of a loss of acknowledged writes in the rest of the stack.
    const ON_LOSS: OnLoss = OnLoss::FailFlush;
    /// Report of such a loss in a layer besides, if it has no copy.
    const ON_LOSS_IN: OnLoss = OnLoss::FailFlush;
    /// Whether all layers but the last have a copy of all data below the function.
    const KEEPS_COPIES: bool = false;
    /// Whether it has background work that takes [orders for jobs](sluice_jobs::Order).
    const HAS_JOBS: bool = false;
    /// Whether it keeps state from one command to the next, so that a second instance cannot continue at once.
    const KEEPS_STATE: bool = true;

    /// Orders of an operator.
    type Order: Order;

    /// Makes the function. `given` holds the contents of the descriptors that its process was started with.
    ///
    /// # Errors
    /// The options are not valid.
    fn make(options: &Options, given: &Given) -> Result<Box<dyn Function>, String>;

    /// Returns whether the function is as large as the layer below.
    fn keeps_size(options: &Options) -> bool {
        let _ = options;
        false
    }

    /// Returns the size of the function over layers of some sizes, if it is neither fixed nor that of the layer
    /// below.
    fn size(options: &Options) -> Option<SizeOf> {
        let _ = options;
        None
    }

    /// Returns the bytes of a write that is never seen half done, of a function that ensures that itself.
    fn atomic_write(options: &Options) -> Option<u32> {
        let _ = options;
        None
    }

    /// Returns the place of the data in the layers below, in words, if it is not where it was.
    fn data(options: &Options) -> Option<String> {
        let _ = options;
        None
    }

    /// Returns the orders for a function that is attached to a drive in use, or detached from it.
    fn changes() -> Changes {
        Changes::default()
    }
}

/// Size of a function over layers of some sizes, bytes.
#[derive(Clone)]
pub struct SizeOf(Arc<Size>);

/// Function of the sizes of the layers.
type Size = dyn Fn(&[u64]) -> u64 + Send + Sync;

impl SizeOf {
    pub fn new(of: impl Fn(&[u64]) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(of))
    }

    /// Returns the size over layers of these sizes.
    pub fn over(&self, sizes: &[u64]) -> u64 {
        (self.0)(sizes)
    }
}

impl fmt::Debug for SizeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SizeOf").finish_non_exhaustive()
    }
}

/// An option or an order, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Name of an option; form of an order, with its arguments in capitals.
    pub name: &'static str,
    pub about: &'static str,
}

/// A number that a function reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub about: &'static str,
}

impl Metric {
    /// Returns the type in the sense of Prometheus.
    pub fn kind(&self) -> &'static str {
        if self.name.ends_with("_total") { "counter" } else { "gauge" }
    }
}

/// Order of an operator: a type with two forms, text and JSON.
pub trait Order: fmt::Display + Serialize + DeserializeOwned {
    /// Parses the words of an order; `None` if there is no such order.
    fn of_words(words: &[&str]) -> Option<Self>;
}

/// Order of a function that takes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum NoOrder {}

impl fmt::Display for NoOrder {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl Order for NoOrder {
    fn of_words(_: &[&str]) -> Option<Self> {
        None
    }
}

/// Report of a loss of acknowledged writes in a layer below a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// The layer reports as if the function were not there.
    #[default]
    Through,
    /// The next Flush fails.
    FailFlush,
    /// The next command fails.
    FailCommand,
}

/// Orders for a function that is attached to a drive in use, or detached from it, in their text form.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Order at an attach for a function that needs to be given the right layer: the drive is right.
    pub asked: Option<String>,
    /// Order at an attach, before the function gets a command.
    pub attached: Option<String>,
    /// Order before a detach: the function misses later writes.
    pub detached: Option<Farewell>,
    /// Reason why the function can be neither attached nor detached.
    pub stays: Option<&'static str>,
}

/// Order before a detach.
#[derive(Clone, Debug)]
pub struct Farewell {
    pub order: String,
    /// Order that reverses it, if the function stays after all.
    pub undo: String,
    /// Order whose answer [`is_given`](Self::is_given) reads.
    pub status: String,
    /// Returns whether the status shows that an operator has given the order before.
    pub is_given: fn(&str) -> Result<bool, String>,
}

/// Function that makes a service of its options and of the secrets that the daemon passes.
type Make = fn(&Options, &Given) -> Result<Box<dyn Function>, String>;

/// Record of a service in the registry.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub name: &'static str,
    pub about: &'static str,
    pub options: &'static [Item],
    pub orders: &'static [Item],
    pub metrics: &'static [Metric],
    pub layers: (usize, usize),
    pub on_loss: OnLoss,
    pub on_loss_in: OnLoss,
    pub keeps_copies: bool,
    pub has_jobs: bool,
    pub keeps_state: bool,
    pub make: Make,
    pub keeps_size: fn(&Options) -> bool,
    pub size: fn(&Options) -> Option<SizeOf>,
    pub atomic_write: fn(&Options) -> Option<u32>,
    pub data: fn(&Options) -> Option<String>,
    pub changes: fn() -> Changes,
    /// Checks an order's text, and returns it in its shortest form.
    pub order_of_text: fn(&str) -> Result<String, String>,
}

impl Record {
    pub(super) const fn of<S: Service>() -> Self {
        Self {
            name: S::NAME,
            about: S::ABOUT,
            options: S::OPTIONS,
            orders: S::ORDERS,
            metrics: S::METRICS,
            layers: S::LAYERS,
            on_loss: S::ON_LOSS,
            on_loss_in: S::ON_LOSS_IN,
            keeps_copies: S::KEEPS_COPIES,
            has_jobs: S::HAS_JOBS,
            keeps_state: S::KEEPS_STATE,
            make: S::make,
            keeps_size: S::keeps_size,
            size: S::size,
            atomic_write: S::atomic_write,
            data: S::data,
            changes: S::changes,
            order_of_text: |text| parse::<S>(text).map(|order| order.to_string()),
        }
    }
}

/// Parses an order of a service.
///
/// # Errors
/// There is no such order. The text lists those there are.
pub(super) fn parse<S: Service>(text: &str) -> Result<S::Order, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    S::Order::of_words(&words).ok_or_else(|| no_order::<S>(text))
}

fn no_order<S: Service>(text: &str) -> String {
    if S::ORDERS.is_empty() {
        return "this function takes no orders".to_owned();
    }
    format!("{} has no order `{}`; it has {}", S::NAME, text.escape_debug(), list(S::ORDERS))
}

/// Returns an answer to an order as JSON.
pub(super) fn json<T: Serialize + ?Sized>(answer: &T) -> Result<String, String> {
    serde_json::to_string(answer).map_err(|error| error.to_string())
}

/// Sends a request of a function to a layer. Returns false if no more requests are accepted, because the function
/// is about to end: its memory is released.
pub(super) fn send(io: &mut Io<'_>, layer: u8, request: Request, data: Data, token: u64) -> bool {
    match io.request(layer, request, data, token) {
        Ok(()) => true,
        Err(data) => {
            if let Data::Own(buffer) = data {
                io.release(buffer);
            }
            false
        }
    }
}

/// Checks that a service has all of these options.
pub(super) fn check_options<S: Service>(options: &Options) -> Result<(), String> {
    let names: Vec<&str> = S::OPTIONS.iter().map(|option| option.name).collect();
    match options.unknown_key(&names) {
        None => Ok(()),
        Some(unknown) if names.is_empty() => {
            Err(format!("{} has no options, and so no `{unknown}`", S::NAME))
        }
        Some(unknown) => Err(format!("{} has no option `{unknown}`; it has {}", S::NAME, names.join(", "))),
    }
}

fn list(items: &[Item]) -> String {
    items.iter().map(|item| item.name).collect::<Vec<_>>().join(", ")
}
