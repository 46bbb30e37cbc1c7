//! Attaching functions to a running drive, and detaching them, while no command is in flight.

use super::drive::{WiredDrive, closed, gone};
use super::function::{FunctionControl, Held, PreparedFunction};
use super::labels;
use super::namespace::Site;
use super::power::Losses;
use sluice_control::drives::Store;
use sluice_controller::{EditStackError, Refusal};
use sluice_frontend::Drive;
use sluice_functions::{Changes, Farewell};
use sluice_spec::error::ApiError;
use sluice_spec::{FunctionSpec, NamespaceSpec, UifSpec};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for the start of an attached function; the drive takes no commands meanwhile.
const START_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for requests in flight at the function's place in the stack.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Interval between two checks.
const LOOK: Duration = Duration::from_millis(1);

/// Pauses between attempts to bring back a function that was not detached, the first and the longest. An
/// example is a process that does not start.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

impl WiredDrive {
    /// Attaches the function that the namespace shall have at index `at` of its functions. A function that
    /// cannot start is not attached.
    pub(super) fn attach(
        &self,
        spec: &NamespaceSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        let (function, place) = placed(spec, at)?;
        may_move(function)?;
        labels::may_attach(spec, at, &self.name)?;
        // The slow part comes first: the process runs before the drive is held.
        let layer = FunctionSpec::Uif(function.clone());
        let opened =
            PreparedFunction::open(&layer, &self.name, spec.block_size, Losses::default(), &self.pools)?;
        let (prepared, Held { function: Some(control), .. }) = opened else { return Err(closed()) };
        let control = Arc::new(control);
        own_place(&control)?;
        self.renew_cache(nsid, &control);
        let quiet = self.quiesce()?;
        self.clear_up(nsid)?;
        self.insert(nsid, at, prepared)?;
        let serves = await_start(&control)
            .or_else(|why| say_which_is_right(&control, function).map_err(|_| why))
            .map_err(|why| not_attached(&control, &why))
            .and_then(|()| begin_anew(&control, function))
            .and_then(|()| store());
        if let Err(problem) = serves {
            let gone = control.uif.leave().map_err(ApiError::conflict);
            if let Err(left) = gone.and_then(|()| self.take_out(nsid, at)) {
                // Commands bypass the abandoned layer until it is taken out.
                control.uif.abandon();
                self.stacks_mut()[nsid as usize - 1][0].leftover = Some(at);
                let (drive, why) = (&self.name, left.error);
                tracing::error!(
                    drive,
                    why,
                    "a function that could not be attached is not out of its drive yet"
                );
            }
            return Err(problem);
        }
        self.stacks_mut()[nsid as usize - 1][0].functions.insert(place, control);
        drop(quiet);
        Ok(())
    }

    /// Detaches the function that the namespace has at index `at` of its functions.
    pub(super) fn detach(
        &self,
        spec: &NamespaceSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        let (function, place) = placed(spec, at)?;
        let control = self.stacks()[nsid as usize - 1][0].functions.get(place).cloned();
        let control = control.ok_or_else(closed)?;
        may_move(function)?;
        own_place(&control)?;
        let refused =
            |why: ApiError| why.about(&format!("the function {} cannot be detached", control.about));
        let quiet = self.quiesce()?;
        self.clear_up(nsid)?;
        let can = self.query(move |drive| drive.subsystem().can_do_without_layer(nsid, at))?;
        can.map_err(|why| refused(ApiError::conflict(why.to_string())))?;
        // The order is sent before `leave`, because a function that has left receives no orders.
        let told = self.bid_farewell(&control, function).map_err(refused)?;
        if let Err(words) = control.uif.leave() {
            return Err(refused(take_back(&control, told.as_ref(), ApiError::conflict(words))));
        }
        if let Err(problem) = store().and_then(|()| self.take_out(nsid, at)) {
            return Err(refused(self.bring_back(&control, told, problem)));
        }
        self.stacks_mut()[nsid as usize - 1][0].functions.remove(place);
        if control.uif.owes_flush_error() {
            // The function has received a flush error, and no host has.
            self.change(move |drive, now_ns| drive.subsystem_mut().lose_writes(nsid, now_ns))?;
        }
        drop(quiet);
        Ok(())
    }

    /// Notifies a function that it will miss writes from now on, so that it does not rely on its state.
    /// Returns the order, if it must be reversed should the function stay.
    fn bid_farewell(
        &self,
        control: &FunctionControl,
        function: &UifSpec,
    ) -> Result<Option<Farewell>, ApiError> {
        let Some(farewell) = changes(function).detached else { return Ok(None) };
        let untold = |words: String| untold(&self.name, &farewell.order, &words);
        // The status comes first: a function that does not answer might execute the order after the wait has
        // ended.
        let status =
            await_start(control).and_then(|()| control.uif.query(&farewell.status, false, START_LIMIT));
        let is_given = status.and_then(|status| (farewell.is_given)(&status)).map_err(untold)?;
        let told = (!is_given).then(|| farewell.clone());
        match control.uif.query(&farewell.order, true, START_LIMIT) {
            Ok(_) => Ok(told),
            Err(words) => Err(take_back(control, told.as_ref(), untold(words))),
        }
    }

    /// Brings back a function that has left, and was not taken out because of `problem`. Its commands wait
    /// until it is back. Returns the problem with the outcome added.
    fn bring_back(
        &self,
        control: &Arc<FunctionControl>,
        told: Option<Farewell>,
        problem: ApiError,
    ) -> ApiError {
        let is_awaited = control.note_away();
        let Err(why) = control.come_back() else { return take_back(control, told.as_ref(), problem) };
        let problem = also(problem, &format!("and its commands wait, for it is not back: {}", why.error));
        if is_awaited {
            return problem;
        }
        let undo = told.as_ref().map(|farewell| farewell.undo.clone());
        match (self.bring_back_later(control, told), undo) {
            (Ok(()), Some(undo)) => {
                also(problem, &format!("that is tried again until it is, and then it is told `{undo}`"))
            }
            (Ok(()), None) => also(problem, "that is tried again until it is"),
            (Err(error), _) => also(problem, &format!("nor is that tried again ({error}): move it")),
        }
    }

    /// Brings back the function on a thread of its own, with as many attempts as needed, unless the drive is
    /// closed.
    pub(super) fn bring_back_later(
        &self,
        control: &Arc<FunctionControl>,
        told: Option<Farewell>,
    ) -> std::io::Result<()> {
        let (drive, control) = (self.name.clone(), Arc::downgrade(control));
        let bring_back = move || {
            let mut pause = PAUSE[0];
            loop {
                std::thread::sleep(pause);
                pause = (2 * pause).min(PAUSE[1]);
                let Some(control) = control.upgrade() else { return };
                let about = &control.about;
                match control.come_back() {
                    Ok(()) => {
                        let back = ApiError::conflict("a function is back that was away");
                        return tracing::warn!(
                            drive,
                            about,
                            "{}",
                            take_back(&control, told.as_ref(), back).error
                        );
                    }
                    Err(why) => {
                        let why = why.error;
                        tracing::error!(drive, about, why, "a function is not back: its commands wait");
                    }
                }
            }
        };
        std::thread::Builder::new().name("function-back".to_owned()).spawn(bring_back).map(drop)
    }

    fn insert(&self, nsid: u32, at: usize, prepared: PreparedFunction) -> Result<(), ApiError> {
        let (task, began) = (self.task.id(), Instant::now());
        while self.query(move |drive| drive.subsystem().is_crossed(nsid, at))? && began.elapsed() < END_LIMIT
        {
            std::thread::sleep(LOOK);
        }
        self.recall_queues(None)?;
        let inserted = self.task.call(move |local| {
            let io = local.io(task);
            let subsystem = local.task_mut::<Drive>(task).filter(|drive| drive.is_whole())?.subsystem_mut();
            let site = Site { task, io: &io, nsid };
            Some(subsystem.insert_layer(nsid, at, |under, stack| prepared.build(under, stack, &site)))
        });
        inserted.map_err(gone)?.ok_or_else(closed)?.map_err(|error| match error {
            EditStackError::Build(problem) => problem,
            EditStackError::Refused(why) => {
                ApiError::conflict(format!("the function cannot be attached: {why}"))
                    .hint("declare it in the configuration, where a restart applies it")
            }
        })
    }

    /// Takes out the remaining layer of a function that could not be attached. Until then, the indexes of
    /// layers differ from those of functions.
    pub(super) fn clear_up(&self, nsid: u32) -> Result<(), ApiError> {
        let Some(at) = self.stacks()[nsid as usize - 1][0].leftover else { return Ok(()) };
        self.take_out(nsid, at).map_err(|why| {
            ApiError::conflict(format!(
                "drive `{}` still has a layer of a function that could not be attached: {}",
                self.name, why.error
            ))
            .hint("try again when what is below it answers, or open the drive again")
        })?;
        self.stacks_mut()[nsid as usize - 1][0].leftover = None;
        Ok(())
    }

    /// Takes out a layer whose function is gone.
    fn take_out(&self, nsid: u32, at: usize) -> Result<(), ApiError> {
        let began = Instant::now();
        loop {
            match self.execute(move |drive, now_ns| drive.subsystem_mut().take_out_layer(nsid, at, now_ns))? {
                Err(Refusal::Busy) if began.elapsed() < END_LIMIT => std::thread::sleep(LOOK),
                done => return done.map_err(|why| ApiError::conflict(why.to_string())),
            }
        }
    }
}

/// Returns the function at index `at` of a namespace, and its index among the functions behind the function
/// SDK.
fn placed(spec: &NamespaceSpec, at: usize) -> Result<(&UifSpec, usize), ApiError> {
    let is_uif = |function: &&FunctionSpec| matches!(function, FunctionSpec::Uif(_));
    match spec.functions.get(at) {
        Some(FunctionSpec::Uif(uif)) => Ok((uif, spec.functions[..at].iter().filter(is_uif).count())),
        _ => Err(closed()),
    }
}

/// Returns the orders for a function that is attached or detached.
fn changes(function: &UifSpec) -> Changes {
    function.service().map(|service| (service.changes)()).unwrap_or_default()
}

/// Refuses a function whose kind is never attached or detached, whatever its place.
fn may_move(function: &UifSpec) -> Result<(), ApiError> {
    changes(function).stays.map_or(Ok(()), |why| {
        let name = function.about();
        Err(ApiError::conflict(format!("the function {name} is neither attached nor detached: {why}"))
            .hint("declare it in the configuration, where a restart applies it"))
    })
}

/// Refuses a function that keeps blocks in places of its own: the data below it differ from the data that it
/// presents.
fn own_place(control: &FunctionControl) -> Result<(), ApiError> {
    match control.uif.has_its_own_map() {
        false => Ok(()),
        true => Err(ApiError::conflict(format!(
            "the function {} keeps blocks in places of its own: to a host that is there, the namespace would become another",
            control.about
        ))
        .hint("declare it in the configuration, over a target of its own")),
    }
}

/// Returns the problem for a function that did not take the order which it needs before it is detached.
fn untold(drive: &str, order: &str, words: &str) -> ApiError {
    ApiError::conflict(format!(
        "it did not take the order `{order}`, without which it would not know that it misses writes: {words}"
    ))
    .hint(format!(
        "mend that and try again; `sluice function restart {drive}` or `sluice function move {drive}` may help. If it \
         can never answer, end the drive and declare or create it without the function, and order `resync all` if \
         that is ever put back"
    ))
}

/// Reverses the order in `told`, because the function stays. Returns `problem` with the outcome added.
fn take_back(control: &FunctionControl, told: Option<&Farewell>, problem: ApiError) -> ApiError {
    let Some(Farewell { order, undo, .. }) = told else { return problem };
    let taken = await_start(control).and_then(|()| control.uif.query(undo, false, START_LIMIT));
    let outcome = match taken {
        Ok(_) => format!("because it stays, it was told `{undo}` after `{order}`"),
        Err(words) => format!(
            "because it stays, order `{undo}`: it may have taken `{order}`, and did not take that: {words}"
        ),
    };
    also(problem, &outcome)
}

fn also(mut problem: ApiError, more: &str) -> ApiError {
    problem.error = format!("{}; {more}", problem.error);
    problem
}

/// Orders a function to treat the data below it as new: its state may be older than writes that it missed.
fn begin_anew(control: &FunctionControl, function: &UifSpec) -> Result<(), ApiError> {
    let Some(order) = changes(function).attached else { return Ok(()) };
    let begun = control.uif.query(&order, false, START_LIMIT).map(drop);
    begun.map_err(|words| not_attached(control, &format!("it says: {words}")))
}

/// Answers a function whose layers were used before, and which therefore needs to learn which layer is right.
/// Attaching the function is the order to copy the drive to the other layers.
fn say_which_is_right(control: &FunctionControl, function: &UifSpec) -> Result<(), String> {
    let order = changes(function).asked.ok_or_else(String::new)?;
    // The reply arrives when the function is ready.
    control.uif.query(&order, false, START_LIMIT).map(drop)
}

fn not_attached(control: &FunctionControl, why: &str) -> ApiError {
    ApiError::conflict(format!("the function {} is not attached: {why}", control.about))
}

/// Waits until a function can be sent commands; returns the reason if it cannot.
fn await_start(control: &FunctionControl) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let status = control.uif.status();
        match status.refusal {
            None if status.ready => return Ok(()),
            None if began.elapsed() < START_LIMIT => std::thread::sleep(LOOK),
            None => return Err(format!("it was not ready within {START_LIMIT:?}")),
            Some(status) => {
                let says = control.uif.query("status", false, START_LIMIT).unwrap_or_else(|words| words);
                return Err(format!("it cannot start ({status:?}), and says: {says}"));
            }
        }
    }
}
