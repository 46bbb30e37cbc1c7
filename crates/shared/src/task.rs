//! The task of a shared object on its home reactor, and the handle of the object for control threads.

use crate::ports::{HomeSide, Refused};
use crate::{Home, Object, Port};
use sluice_reactor::{Arm, FileSlot, Immovable, Io, ReactorGone, ReactorHandle, Task, TaskHandle, TaskId};
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Token of the notifier.
const NOTIFIED: u64 = 0;

/// Task of a shared object.
#[derive(Debug)]
pub struct HomeTask<O> {
    home: Home<O>,
    /// Watched, so that ports wake the task.
    _notifier: FileSlot,
}

impl<O: Object> HomeTask<O> {
    fn new(home: Home<O>, task: TaskId, io: &Io) -> io::Result<Self> {
        let notifier = io.register_file(home.side().as_fd().try_clone_to_owned()?)?;
        io.watch(&notifier, task, NOTIFIED);
        Ok(Self { home, _notifier: notifier })
    }
}

impl<O: Object> Task for HomeTask<O> {
    fn turn(&mut self, _now_ns: u64) -> usize {
        self.home.turn()
    }

    fn event(&mut self, _token: u64, _result: i32, _more: bool, _now_ns: u64) {
        // The turn that follows reads all messages.
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        if self.home.arm() { Arm::Busy } else { Arm::Asleep { until: None } }
    }

    fn disarm(&mut self) {
        self.home.disarm();
    }
}

/// Task in place of a home whose notifier cannot be registered.
struct Failed;

impl Task for Failed {
    fn turn(&mut self, _now_ns: u64) -> usize {
        0
    }

    fn event(&mut self, _token: u64, _result: i32, _more: bool, _now_ns: u64) {}

    fn arm(&mut self, _now_ns: u64) -> Arm {
        Arm::Asleep { until: None }
    }
}

/// Handle of a shared object, for control threads.
#[derive(Debug)]
pub struct SharedObject<O> {
    side: Arc<HomeSide>,
    task: TaskHandle,
    of: PhantomData<fn() -> O>,
}

impl<O: Object> SharedObject<O> {
    /// Starts an object on its home reactor. Blocks.
    ///
    /// # Errors
    /// There is no descriptor left, or the reactor has ended.
    pub fn start(reactor: &ReactorHandle, object: O) -> io::Result<Self> {
        let home = Home::new(object)?;
        let side = Arc::clone(home.side());
        let added = reactor.call(move |local| {
            let mut failure = None;
            let id = local.add(|task, io| match HomeTask::new(home, task, &io) {
                Ok(task) => Box::new(task),
                Err(error) => {
                    failure = Some(error);
                    Box::new(Failed)
                }
            });
            if failure.is_some() {
                drop(local.remove(id));
            }
            failure.map_or(Ok(id), Err)
        });
        let id = added.map_err(io::Error::other)??;
        Ok(Self { side, task: TaskHandle::new(reactor.clone(), id), of: PhantomData })
    }

    /// Creates a port for a further user.
    ///
    /// # Errors
    /// The object is removed, has too many ports, or there is no descriptor left.
    pub fn connect(&self) -> Result<Port, Refused> {
        let (port, connection) = self.side.connect()?;
        let (id, number) = (self.task.id(), port.number());
        let attach = move |local: &mut sluice_reactor::Local| {
            if let Some(task) = local.task_mut::<HomeTask<O>>(id) {
                task.home.attach(connection);
            }
        };
        self.task.mail(attach).map_err(|_| {
            self.side.free_number(number);
            Refused::Gone
        })?;
        Ok(port)
    }

    /// Returns the number of ports that are not yet closed and reclaimed.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.side.ports()
    }

    /// Reads the object on its home reactor. Blocks.
    ///
    /// # Errors
    /// The object is removed, or its reactor does not answer.
    pub fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&O) -> R + Send + 'static,
    ) -> Result<R, ReactorGone> {
        let id = self.task.id();
        let found = self
            .task
            .call(move |local| local.task::<HomeTask<O>>(id).map(|task| read(task.home.object())))?;
        found.ok_or(ReactorGone::Ended)
    }

    /// Moves the object to another home reactor. Blocks.
    ///
    /// # Errors
    /// The object stays on its reactor.
    pub fn move_to(&self, reactor: &ReactorHandle, limit: Duration) -> Result<(), Immovable> {
        self.task.move_to(reactor, limit)
    }

    /// Removes the object and returns when it is gone. Blocks.
    ///
    /// # Errors
    /// The object is in use, or is removed already.
    pub fn remove(&self) -> Result<(), Refused> {
        self.side.remove()?;
        let id = self.task.id();
        self.task.call(move |local| drop(local.remove(id))).map_err(|_| Refused::Gone)
    }
}
