//! Classifiers, and the generations of them that a router has at one time.

use crate::{Context, Leg, Verdict};
use std::fmt;
use zerocopy::transmute_mut;

/// Decides where each command of a namespace goes.
///
/// A classifier is called on the reactor at the hooks that it requested; it must not block. Because it is
/// created and dropped elsewhere, it is `Send`. The verdicts are not trusted: an impossible one fails the
/// command with an internal error and is counted. Changes of the context's steering apply to the legs of the
/// verdict.
pub trait Classifier: Send {
    /// Returns the verdict of a hook.
    ///
    /// # Errors
    /// The program ended without a verdict, which counts as an impossible one.
    fn classify(&mut self, context: &mut Context) -> Result<Verdict, Trapped>;

    /// Handles the refusal of an impossible verdict: its command fails, and no hook of it follows. State that
    /// is kept for the verdict's cookie can be freed.
    fn refused(&mut self, _verdict: Verdict) {}
}

/// Error: a program ended without a verdict. The reason is recorded by the code that runs the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trapped;

impl fmt::Display for Trapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program ended without a verdict")
    }
}

impl std::error::Error for Trapped {}

impl<F: FnMut(&mut Context) -> Verdict + Send> Classifier for F {
    #[inline]
    fn classify(&mut self, context: &mut Context) -> Result<Verdict, Trapped> {
        Ok(self(context))
    }
}

/// Classifier that sends every command down the first path, without a later hook.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Classifier for Direct {
    #[inline]
    fn classify(&mut self, _context: &mut Context) -> Result<Verdict, Trapped> {
        Ok(Verdict::send(Leg::FIRST))
    }
}

/// A program with its context as bytes and its verdict as a number, such as one in eBPF. It writes to
/// [`Context::WRITABLE`] and nowhere else.
pub struct Bytecode<F>(F);

impl<F, E> Bytecode<F>
where
    F: FnMut(&mut [u8; Context::SIZE]) -> Result<u64, E> + Send,
{
    /// Creates a classifier. `run` runs the program once, and confines its writes; it records its errors
    /// itself.
    pub fn new(run: F) -> Self {
        Self(run)
    }
}

impl<F, E> Classifier for Bytecode<F>
where
    F: FnMut(&mut [u8; Context::SIZE]) -> Result<u64, E> + Send,
{
    #[inline]
    fn classify(&mut self, context: &mut Context) -> Result<Verdict, Trapped> {
        (self.0)(transmute_mut!(context)).map(Verdict).map_err(|_| Trapped)
    }
}

impl<F> fmt::Debug for Bytecode<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bytecode").finish_non_exhaustive()
    }
}

/// A [`Bytecode`] whose program may write anywhere in its context: forbidden changes are found afterwards.
pub struct Unconfined<F>(F);

impl<F, E> Unconfined<F>
where
    F: FnMut(&mut [u8; Context::SIZE]) -> Result<u64, E> + Send,
{
    /// Creates a classifier. `run` runs the program once; it records its errors itself.
    pub fn new(run: F) -> Self {
        Self(run)
    }
}

impl<F, E> Classifier for Unconfined<F>
where
    F: FnMut(&mut [u8; Context::SIZE]) -> Result<u64, E> + Send,
{
    fn classify(&mut self, context: &mut Context) -> Result<Verdict, Trapped> {
        let before = *context;
        let verdict = (self.0)(transmute_mut!(context)).map(Verdict).map_err(|_| Trapped)?;
        if !context.differs_in_steering_alone(&before) {
            context.overreach();
        }
        Ok(verdict)
    }
}

impl<F> fmt::Debug for Unconfined<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unconfined").finish_non_exhaustive()
    }
}

/// Number of a command's program; zero for none.
type Number = u16;

/// Callback for a program whose last command is done: to read its maps, or to drop it where that may take
/// time.
pub(crate) type Retire = Box<dyn FnMut(Box<dyn Classifier>) + Send>;

/// The program of new commands, and earlier ones that still have commands in flight.
pub(crate) struct Programs {
    /// Program of new commands.
    current: Option<Generation>,
    /// Number of the current program.
    number: Number,
    /// Earlier programs by number less one.
    earlier: Vec<Option<Generation>>,
    /// Commands in flight of all programs.
    in_flight: usize,
    retire: Retire,
}

struct Generation {
    classifier: Box<dyn Classifier>,
    in_flight: usize,
    /// Number of the program's errors.
    errors: u64,
}

impl Programs {
    pub(crate) fn new(retire: Retire) -> Self {
        Self { current: None, number: 0, earlier: Vec::new(), in_flight: 0, retire }
    }

    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.current.is_some()
    }

    /// Returns whether no program has a command.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Sets the program of new commands, or none.
    pub(crate) fn replace(&mut self, classifier: Option<Box<dyn Classifier>>) {
        let number = std::mem::take(&mut self.number);
        match self.current.take() {
            Some(old) if old.in_flight > 0 => self.earlier[usize::from(number) - 1] = Some(old),
            Some(old) => (self.retire)(old.classifier),
            None => {}
        }
        if let Some(classifier) = classifier {
            self.current = Some(Generation { classifier, in_flight: 0, errors: 0 });
            self.number = self.unused_number();
        }
    }

    fn unused_number(&mut self) -> Number {
        let index = self.earlier.iter().position(Option::is_none).unwrap_or(self.earlier.len());
        if index == self.earlier.len() {
            self.earlier.push(None);
        }
        // Every program but the current has a command in flight, of which a drive has far fewer.
        Number::try_from(index + 1).expect("fewer programs than commands")
    }

    /// Begins a command: the current program decides on it until its end. Returns the program's number.
    #[inline]
    pub(crate) fn enter(&mut self) -> Number {
        if let Some(generation) = &mut self.current {
            generation.in_flight += 1;
            self.in_flight += 1;
        }
        self.number
    }

    /// Ends a command of this program.
    #[inline]
    pub(crate) fn leave(&mut self, number: Number) {
        if let Some(generation) = self.generation(number) {
            generation.in_flight -= 1;
            self.in_flight -= 1;
            if number != self.number {
                self.retire_if_done(number);
            }
        }
    }

    /// Returns the verdict of the current program.
    #[inline]
    pub(crate) fn classify_new(&mut self, context: &mut Context) -> Result<Verdict, Trapped> {
        self.current.as_mut().ok_or(Trapped)?.classifier.classify(context)
    }

    /// Returns the verdict of the program of a command.
    pub(crate) fn classify(&mut self, number: Number, context: &mut Context) -> Result<Verdict, Trapped> {
        self.generation(number).ok_or(Trapped)?.classifier.classify(context)
    }

    /// Reports to a program that its verdict was refused.
    pub(crate) fn refuse(&mut self, number: Number, verdict: Verdict) {
        if let Some(generation) = self.generation(number) {
            generation.classifier.refused(verdict);
        }
    }

    /// Counts an error. Returns whether the program is the current one and this error is one too many.
    pub(crate) fn count_error(&mut self, number: Number, limit: Option<u64>) -> bool {
        let is_current = number == self.number;
        let Some(generation) = self.generation(number) else { return false };
        generation.errors += 1;
        is_current && limit.is_some_and(|limit| generation.errors >= limit)
    }

    #[inline]
    fn generation(&mut self, number: Number) -> Option<&mut Generation> {
        match number == self.number {
            true => self.current.as_mut(),
            false => self.earlier.get_mut(usize::from(number).wrapping_sub(1))?.as_mut(),
        }
    }

    fn retire_if_done(&mut self, number: Number) {
        let Some(place) = self.earlier.get_mut(usize::from(number).wrapping_sub(1)) else { return };
        if let Some(done) = place.take_if(|generation| generation.in_flight == 0) {
            (self.retire)(done.classifier);
        }
    }
}
