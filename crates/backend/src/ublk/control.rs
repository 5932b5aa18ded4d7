//! Devices: made, started, resized, taken over, removed.
#![allow(
    unsafe_code,
    reason = "the kernel is given pointers to buffers that live until the command has ended"
)]

use std::{
    fs::{File, OpenOptions},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use onefold_core::{
    Error, Kind, Result,
    host_device::{HostDevice, HostQueue},
};
use rustix::io::Errno;

use super::{
    abi::{self, Command, Info, Shape},
    queue::Queue,
};

/// The file that takes commands.
const CONTROL: &str = "/dev/ublk-control";

/// Requests of a queue at once.
const DEPTH: u16 = 64;

/// Queues at most.
const QUEUES_MAX: usize = 4;

/// Bytes of a request at most.
const REQUEST_BYTES: u32 = 256 << 10;

/// How long the kernel may take until a device whose server has just died can be taken over, and until a node in `/dev`
/// is there.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often one looks.
const LOOK: Duration = Duration::from_millis(50);

/// A device that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Its number: programs find `/dev/ublkbN`.
    pub number: u32,
    /// The size of the volume; a multiple of 4096.
    pub bytes: u64,
    /// Programs may only read.
    pub is_read_only: bool,
    /// A number by which a server knows the device of its volume again.
    pub mark: u64,
    /// The device outlives its server, and gives the next one what was not answered.
    pub outlives: bool,
}

/// A ring for commands, one at a time.
struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    fn open() -> Result<Control> {
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(CONTROL);
        let file = file.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::new(
                Kind::Unsupported,
                format!("{CONTROL} is not there: load the kernel's driver (modprobe ublk_drv), which Linux has since 6.0"),
            ),
            _ => Error::from_io(CONTROL, e),
        })?;
        let ring = IoUring::builder().build(4);
        let ring =
            ring.map_err(|e| Error::from_io("io_uring, which devices of this host need", e))?;
        Ok(Control { file, ring })
    }

    /// Does a command to its end; gives the error of the kernel.
    fn ask(&mut self, command: u32, what: &Command) -> std::result::Result<(), Errno> {
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, command).cmd(what.encode()).build();
        // SAFETY: the buffer of the command outlives the wait below, which ends when the kernel has answered.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno::BUSY)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // The entry was not taken: nothing of it is in the kernel.
                Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
            }
            if let Some(done) = self.ring.completion().next() {
                let result = done.result();
                return if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }

    fn command(&mut self, command: u32, device: u32, data: u64) -> std::result::Result<(), Errno> {
        self.ask(command, &Command { device, data, ..Command::default() })
    }

    /// A command with a buffer, which the kernel reads or fills.
    fn with(
        &mut self,
        command: u32,
        device: u32,
        buffer: &mut [u8],
    ) -> std::result::Result<(), Errno> {
        let (address, bytes) = (buffer.as_mut_ptr() as u64, buffer.len() as u16);
        self.ask(command, &Command { device, address, bytes, data: 0 })
    }

    fn info(&mut self, device: u32) -> std::result::Result<Info, Errno> {
        let mut buffer = [0; abi::INFO_BYTES];
        self.with(abi::GET_DEV_INFO, device, &mut buffer)?;
        Ok(Info::decode(&buffer))
    }

    fn features(&mut self) -> u64 {
        let mut buffer = [0; 8];
        // Kernels before 6.5 do not know the command, and have none of the features that are asked for here.
        match self.with(abi::GET_FEATURES, 0, &mut buffer) {
            Ok(()) => u64::from_le_bytes(buffer),
            Err(_) => 0,
        }
    }
}

fn failed(number: u32, what: &str, errno: Errno) -> Error {
    Error::from_io(format_args!("device {number}: {what}"), errno.into())
}

/// A device that this process serves.
pub struct UblkDevice {
    control: Control,
    wanted: Parameters,
    features: u64,
    queues: Vec<Queue>,
    /// It was left by another server.
    is_taken_over: bool,
    is_started: bool,
}

impl UblkDevice {
    /// Makes a device, or takes over that which the last server of the same volume has left.
    ///
    /// # Errors
    /// `Unsupported`: the kernel has no driver. `Denied`: not root. `Exists`: the number is another server's.
    pub fn open(wanted: Parameters) -> Result<UblkDevice> {
        let mut control = Control::open()?;
        let features = control.features();
        let number = wanted.number;
        let known = control.info(number).ok();
        let mut flags = abi::CMD_IOCTL_ENCODE;
        if wanted.outlives {
            flags |= abi::USER_RECOVERY | abi::USER_RECOVERY_REISSUE;
        }
        let is_taken_over = match known {
            Some(known) if known.mark != wanted.mark => {
                let why = format!(
                    "device {number} is another server's, or another volume's; it can be removed by that one alone"
                );
                return Err(Error::new(Kind::Exists, why));
            }
            Some(known) if known.flags & abi::USER_RECOVERY != 0 => {
                UblkDevice::take_over(&mut control, number)?;
                true
            }
            Some(_) => {
                // It died with its server.
                control.command(abi::STOP_DEV, number, 0).ok();
                control
                    .command(abi::DEL_DEV, number, 0)
                    .map_err(|e| failed(number, "removing what an earlier server left", e))?;
                false
            }
            None => false,
        };
        let info = match is_taken_over {
            true => control.info(number).map_err(|e| failed(number, "its state", e))?,
            false => UblkDevice::add(&mut control, &wanted, flags)?,
        };
        let device = Path::new("/dev").join(format!("ublkc{number}"));
        let queues = (0..info.queues).map(|queue| Queue::open(&device, queue, &info));
        let queues = queues.collect::<Result<Vec<_>>>()?;
        Ok(UblkDevice { control, wanted, features, queues, is_taken_over, is_started: false })
    }

    fn add(control: &mut Control, wanted: &Parameters, flags: u64) -> Result<Info> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let info = Info {
            queues: cores.min(QUEUES_MAX) as u16,
            depth: DEPTH,
            request_bytes: REQUEST_BYTES,
            id: wanted.number,
            process: std::process::id() as i32,
            flags,
            mark: wanted.mark,
            state: 0,
        };
        let mut buffer = info.encode();
        control
            .with(abi::ADD_DEV, wanted.number, &mut buffer)
            .map_err(|e| failed(wanted.number, "making it", e))?;
        let info = Info::decode(&buffer);
        let shape = Shape {
            bytes: wanted.bytes,
            request_bytes: info.request_bytes,
            is_read_only: wanted.is_read_only,
        };
        let set = control.with(abi::SET_PARAMS, wanted.number, &mut shape.encode());
        if let Err(errno) = set {
            control.command(abi::DEL_DEV, wanted.number, 0).ok();
            return Err(failed(wanted.number, "its parameters", errno));
        }
        Ok(info)
    }

    /// Waits until the kernel knows that the last server is gone, and begins to take its place.
    fn take_over(control: &mut Control, number: u32) -> Result<()> {
        let begun = Instant::now();
        loop {
            match control.command(abi::START_USER_RECOVERY, number, 0) {
                Ok(()) => return Ok(()),
                Err(Errno::BUSY) if begun.elapsed() < PATIENCE => thread::sleep(LOOK),
                Err(errno) => {
                    return Err(failed(number, "taking it over from the last server", errno));
                }
            }
        }
    }
}

impl HostDevice for UblkDevice {
    fn queues(&mut self) -> Vec<Box<dyn HostQueue>> {
        self.queues.drain(..).map(|queue| Box::new(queue) as Box<dyn HostQueue>).collect()
    }

    fn start(&mut self) -> Result<()> {
        let number = self.wanted.number;
        let (command, what) = match self.is_taken_over {
            true => (abi::END_USER_RECOVERY, "going on with it"),
            false => (abi::START_DEV, "starting it"),
        };
        let process = u64::from(std::process::id());
        self.control.command(command, number, process).map_err(|e| failed(number, what, e))?;
        self.is_started = true;
        if self.is_taken_over {
            // The volume may have been resized meanwhile; a kernel that can't follow shows the old size.
            let _ = self.resize(self.wanted.bytes);
        }
        Ok(())
    }

    fn path(&self) -> String {
        format!("/dev/ublkb{}", self.wanted.number)
    }

    fn resize(&mut self, bytes: u64) -> Result<()> {
        let number = self.wanted.number;
        if self.features & abi::UPDATE_SIZE == 0 {
            let why = format!(
                "the kernel can't change the size of device {number} while it is there: start the server again"
            );
            return Err(Error::new(Kind::Unsupported, why));
        }
        let sectors = bytes / onefold_core::host_device::HOST_SECTOR;
        self.control
            .command(abi::SET_SIZE, number, sectors)
            .map_err(|e| failed(number, "its size", e))?;
        self.wanted.bytes = bytes;
        Ok(())
    }

    fn end(&mut self) -> Result<bool> {
        let number = self.wanted.number;
        if !self.is_started {
            return Ok(false);
        }
        let is_open = || {
            let alone = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
                .open(self.path());
            alone.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
        };
        if self.wanted.outlives && is_open() {
            return Ok(true);
        }
        self.is_started = false;
        self.control
            .command(abi::STOP_DEV, number, 0)
            .map_err(|e| failed(number, "stopping it", e))?;
        Ok(false)
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        // One that stays is started.
        if !self.is_started {
            let _ = self.control.command(abi::DEL_DEV, self.wanted.number, 0);
        }
    }
}
