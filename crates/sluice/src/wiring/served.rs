//! What the control side asks of a drive, whichever front-end serves it.

use sluice_controller::Joined;
use sluice_frontends::{tcp, vfio_user};
use sluice_reactor::{Local, TaskId};

/// A front-end with its controller.
pub(super) trait Served {
    fn device(&self) -> &Joined;
    fn device_mut(&mut self) -> &mut Joined;
    /// A client, or a host, is there.
    fn is_connected(&self) -> bool;
    /// NVMe Qualified Name of the host that is there, if it said one.
    fn host(&self) -> Option<String> {
        None
    }
    fn drain(&mut self, now_ns: u64);
    fn is_drained(&self) -> bool;
}

impl Served for vfio_user::Endpoint {
    fn device(&self) -> &Joined {
        vfio_user::Endpoint::device(self)
    }

    fn device_mut(&mut self) -> &mut Joined {
        vfio_user::Endpoint::device_mut(self)
    }

    fn is_connected(&self) -> bool {
        self.status().connected
    }

    fn drain(&mut self, now_ns: u64) {
        vfio_user::Endpoint::drain(self, now_ns);
    }

    fn is_drained(&self) -> bool {
        vfio_user::Endpoint::is_drained(self)
    }
}

impl Served for tcp::Endpoint {
    fn device(&self) -> &Joined {
        tcp::Endpoint::device(self)
    }

    fn device_mut(&mut self) -> &mut Joined {
        tcp::Endpoint::device_mut(self)
    }

    fn is_connected(&self) -> bool {
        self.host().is_some()
    }

    fn host(&self) -> Option<String> {
        self.status().host
    }

    fn drain(&mut self, _now_ns: u64) {
        tcp::Endpoint::drain(self);
    }

    fn is_drained(&self) -> bool {
        tcp::Endpoint::is_drained(self)
    }
}

/// A drive, to look at.
pub(super) fn find(local: &Local, task: TaskId) -> Option<&dyn Served> {
    let over_tcp = || local.task::<tcp::Endpoint>(task).map(|it| it as &dyn Served);
    local.task::<vfio_user::Endpoint>(task).map(|it| it as &dyn Served).or_else(over_tcp)
}

/// A drive, to change.
pub(super) fn find_mut(local: &mut Local, task: TaskId) -> Option<&mut dyn Served> {
    match local.task::<tcp::Endpoint>(task).is_some() {
        true => local.task_mut::<tcp::Endpoint>(task).map(|it| it as &mut dyn Served),
        false => local.task_mut::<vfio_user::Endpoint>(task).map(|it| it as &mut dyn Served),
    }
}
