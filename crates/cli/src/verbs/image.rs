//! `onefold export` and `onefold import`: volumes as raw images.

use std::{
    fs::File,
    io::{BufReader, ErrorKind, Read, Write},
    os::unix::{fs::FileExt, net::UnixStream},
    path::{Path, PathBuf},
};

use clap::Args;
use onefold_backend::{
    new_file::NewFile,
    sparse::{self, cut_off, next_data, still_has},
};
use onefold_core::{BLOCK_BYTES, Block, Error, Kind, Result, block::bytes_mut};
use onefold_stream::{Begin, Content, Next, StreamReader, StreamWriter};
use serde_json::json;

use super::{
    copied::Sent,
    copies::{Given, Place},
};
use onefold::parts::control::{Request, stream::UNWRITTEN};
use onefold_console::{failure::Failure, output::Answer, progress::Progress, size::Size};

/// Blocks that are read at once.
const READ_BLOCKS: usize = 256;

/// Bytes at the beginning of an image by which its format is known.
const FIRST_BYTES: usize = 68;

/// Formats of images that are not raw, and where they say so.
const FORMATS: [(&str, usize, &[u8]); 10] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("QED", 0, b"QED\0"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"COWD"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("Parallels", 0, b"WithoutFreeSpace"),
    ("Parallels", 0, b"WithouFreSpacExt"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 64, b"\x7f\x10\xda\xbe"),
];

/// Writes what a volume, or a snapshot, holds as a raw image
///
/// Every block is verified. A file has holes where the volume holds nothing, and its name when it is
/// whole and durable. A volume that is written meanwhile comes as no single moment had it: export a
/// snapshot. For qcow2 and other formats give the image to `qemu-img convert -f raw`: without `-f raw`
/// it would believe what a guest wrote at the beginning. Block and cluster stores; the store may be
/// served meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold export disk.onefold vm1@monday vm1.raw\n  \
                  onefold export disk.onefold vm1@monday - | zstd > vm1.raw.zst")]
pub(crate) struct ExportOptions {
    /// The store
    store: PathBuf,

    /// The volume, or the snapshot, like vm1@monday
    name: String,

    /// The new file, or - for standard output
    file: PathBuf,

    /// Prints JSON, whose keys are stable. Needs a file: standard output has the image otherwise
    #[arg(long)]
    json: bool,
}

/// Makes a volume of a raw image
///
/// Holes of a file, and blocks of zeroes, take no space. The volume has its name when it is whole and
/// durable; until then a block store calls it .NAME.part, and a cluster store shows nothing. For qcow2
/// and other formats give the volume what `qemu-img convert -O raw` makes. Block and cluster stores;
/// the store may be served meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold import disk.onefold vm1 vm1.raw\n  \
                  zstdcat vm1.raw.zst | onefold import disk.onefold vm1 -")]
pub(crate) struct ImportOptions {
    /// The store
    store: PathBuf,

    /// Name of the new volume
    name: String,

    /// The image, a file or a device, or - for standard input. Its size is rounded up to 4 KiB
    file: PathBuf,

    /// Takes the bytes of an image as they are that looks like one of another format, as qcow2
    #[arg(long)]
    raw: bool,

    /// The domain of an encrypted store that the volume belongs to. Without it, the one that each store
    /// begins with
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    #[command(flatten)]
    answer: Answer,
}

/// Why archives have no images.
const OVER_NBD: &str = "its volumes take and give images over NBD, which `onefold serve` offers: `qemu-img convert` \
     copies one to or from a volume";

/// Exports.
pub(crate) fn export(options: &ExportOptions) -> Result<(), Failure> {
    let to_output = options.file == Path::new("-");
    if options.json && to_output {
        let message = "standard output has the image: --json needs a file";
        return Err(Failure::usage(message));
    }
    let store = Place::at(&options.store, OVER_NBD)?;
    let (sent, bytes) = if to_output {
        let mut out = std::io::stdout().lock();
        let mut sink = InOrder { out: &mut out, at: 0, gone: false };
        let exported = fetch(&store, &options.name, &mut sink);
        if sink.gone {
            // The reader has seen enough.
            return Ok(());
        }
        exported?
    } else {
        let new = NewFile::create(&options.file)?;
        let exported = fetch(&store, &options.name, &mut Sparse { file: new.file() })
            .map_err(|e| e.context(options.file.display()))?;
        new.publish()?;
        exported
    };
    let answer = Answer { json: options.json };
    if to_output {
        return Ok(());
    }
    let mut report = json!(sent);
    report["name"] = options.name.clone().into();
    report["bytes"] = bytes.into();
    let name = options.name.escape_debug();
    answer.tell(&report, format_args!("exported '{name}' of {}", Size(bytes)))
}

/// Where an image goes, from its beginning to its end.
trait Sink {
    /// It is so many bytes long.
    fn size(&mut self, bytes: u64) -> Result<()>;

    /// The bytes at a place; what lies before them and behind the last ones is zeroes.
    fn data(&mut self, at: u64, bytes: &[u8]) -> Result<()>;

    /// All was told.
    fn end(&mut self, bytes: u64) -> Result<()>;
}

/// A file with holes.
struct Sparse<'a> {
    file: &'a File,
}

fn unread(path: &Path, error: std::io::Error) -> Error {
    Error::from_io(format_args!("{} can't be read", path.display()), error)
}

fn unread_input(error: std::io::Error) -> Error {
    Error::from_io("standard input can't be read", error)
}

fn unwritten(error: std::io::Error) -> Error {
    Error::from_io("the image can't be written", error)
}

impl Sink for Sparse<'_> {
    fn size(&mut self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(unwritten)
    }

    fn data(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(unwritten)
    }

    fn end(&mut self, _: u64) -> Result<()> {
        Ok(())
    }
}

/// A pipe.
struct InOrder<'a> {
    out: &'a mut dyn Write,
    at: u64,
    gone: bool,
}

impl InOrder<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|e| {
            self.gone = e.kind() == ErrorKind::BrokenPipe;
            unwritten(e)
        })
    }
}

impl Sink for InOrder<'_> {
    fn size(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn data(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.end(at)?;
        self.put(bytes)
    }

    fn end(&mut self, bytes: u64) -> Result<()> {
        let zeroes = vec![0; READ_BLOCKS * BLOCK_BYTES];
        while self.at < bytes {
            let part = (bytes - self.at).min(zeroes.len() as u64);
            self.put(&zeroes[..part as usize])?;
        }
        self.out.flush().map_err(unwritten)
    }
}

/// Gets an image, of a served store or not, and its size.
fn fetch(store: &Place, name: &str, sink: &mut dyn Sink) -> Result<(Sent, u64)> {
    let (mut bytes, sink) = (0, std::cell::RefCell::new(sink));
    let bar = Progress::new("exporting");
    let mut take = |stream: &mut dyn Read| {
        let stream = BufReader::with_capacity(1 << 20, stream);
        bytes = unpack(stream, &mut **sink.borrow_mut(), &bar)?;
        Ok(())
    };
    let take = std::cell::RefCell::new(&mut take);
    let request = Request::Export { name: name.to_owned() };
    let sent = store.served_or_not(
        true,
        |server| server.fetch(&request, |stream| (take.borrow_mut())(stream)),
        |here| {
            let (mut give, mut receive) = pair()?;
            std::thread::scope(|scope| {
                let exporting = scope.spawn(move || here.give(Given::Export(name), &mut give));
                let taken = (take.borrow_mut())(&mut receive);
                // Who can't take it any more ends the export, whose error is the reason otherwise.
                drop(receive);
                let exported =
                    exporting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                match (exported, taken) {
                    (Err(error), Err(taken)) => {
                        Err(if error.kind() == Kind::Io { taken } else { error })
                    }
                    (exported, taken) => exported.and_then(|sent| taken.map(|()| sent)),
                }
            })
        },
    )?;
    Ok((sent, bytes))
}

fn pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(|e| Error::from_io("a pipe can't be made", e))
}

/// Gives a sink what a stream holds; returns its size in bytes.
fn unpack(stream: impl Read, sink: &mut dyn Sink, bar: &Progress) -> Result<u64> {
    let block = BLOCK_BYTES as u64;
    let mut reader = StreamReader::begin(stream)?;
    let size = reader.about().blocks * block;
    sink.size(size)?;
    loop {
        let frame = match reader.next_frame()? {
            Next::End(blocks) => {
                sink.end(blocks * block)?;
                return Ok(blocks * block);
            }
            Next::Frame(frame) => frame,
            Next::Offer(_) => return Err(other_version()),
        };
        bar.set(frame.first * block, size);
        match frame.content {
            Content::Data(data) => sink.data(frame.first * block, &data)?,
            Content::Hole | Content::Zeroes => {}
            Content::Repeat(_) | Content::Held(_) | Content::Lost => return Err(other_version()),
        }
    }
}

fn other_version() -> Error {
    Error::new(Kind::Unsupported, "the server of the store is of another version")
}

/// Imports.
pub(crate) fn import(options: ImportOptions) -> Result<(), Failure> {
    let ImportOptions { store, name, file, raw, domain, answer } = options;
    let store = Place::at(&store, OVER_NBD)?;
    let image = Image::open(&file)?;
    if !raw {
        image.check_raw()?;
    }
    let request = Request::Import { name: name.clone(), domain: domain.clone() };
    let bytes: u64 = store.served_or_not(
        false,
        |server| server.send(&request, &mut |_, _| {}, |outlet| image.pack(outlet)),
        |here| {
            let (give, receive) = pair()?;
            std::thread::scope(|scope| {
                let (name, domain) = (name.as_str(), domain.as_deref());
                let input = BufReader::with_capacity(1 << 20, receive);
                let importing = scope.spawn(move || here.import(name, domain, input));
                let packed = image.pack(give);
                let imported =
                    importing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                match (packed, imported) {
                    // An engine that has refused the rest says why.
                    (Err(error), Err(imported)) => {
                        Err(if error.to_string().starts_with(UNWRITTEN) { imported } else { error })
                    }
                    (packed, imported) => imported.and_then(|bytes| packed.map(|()| bytes)),
                }
            })
        },
    )?;
    let report = json!({ "name": name, "bytes": bytes });
    let shown = name.escape_debug();
    answer.tell(&report, format_args!("imported volume '{shown}' of {}", Size(bytes)))
}

/// An image that is read.
enum Image {
    /// With what was read of it.
    Input(Vec<u8>),
    /// With its length.
    File(File, u64, PathBuf),
}

impl Image {
    fn open(path: &Path) -> Result<Image> {
        if path == Path::new("-") {
            let mut first = Vec::new();
            let read = std::io::stdin().lock().take(FIRST_BYTES as u64).read_to_end(&mut first);
            return read.map(|_| Image::Input(first)).map_err(unread_input);
        }
        let wrong = |e| unread(path, e);
        let file = sparse::open(path)?;
        let length = sparse::length(&file).map_err(wrong)?;
        Ok(Image::File(file, length, path.to_owned()))
    }

    /// Refuses formats of virtual machines by their first bytes.
    fn check_raw(&self) -> Result<()> {
        let mut first = [0; FIRST_BYTES];
        let (shown, old) = match self {
            Image::Input(bytes) => {
                first[..bytes.len()].copy_from_slice(bytes);
                ("standard input".to_owned(), "OLD".to_owned())
            }
            Image::File(file, _, path) => {
                fill(&mut first, |into, done| file.read_at(into, done as u64))
                    .map_err(|e| unread(path, e))?;
                (path.display().to_string(), path.display().to_string())
            }
        };
        let Some((format, ..)) = FORMATS.iter().find(|(_, at, is)| first[*at..].starts_with(is))
        else {
            return Ok(());
        };
        let what = format!(
            "{shown} is a {format} image: convert it first (qemu-img convert -O raw {old} NEW), \
             or take its bytes as they are with --raw"
        );
        Err(Error::new(Kind::InvalidInput, what))
    }

    /// Writes all of it as a stream.
    fn pack(&self, out: impl Write) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let bar = Progress::new("importing");
        let mut buffer = Block::zeroed_vec(READ_BLOCKS);
        match self {
            Image::Input(begin) => {
                let mut writer = StreamWriter::begin(out, &Begin::default(), false)?;
                let (mut input, mut first) = (begin.chain(std::io::stdin().lock()), 0);
                loop {
                    let read = fill(bytes_mut(&mut buffer), |into, _| input.read(into))
                        .map_err(unread_input)?;
                    let blocks = read.div_ceil(BLOCK_BYTES);
                    put(&mut writer, first, &buffer[..blocks])?;
                    first += blocks as u64;
                    bar.set(first * block, 0);
                    if read < READ_BLOCKS * BLOCK_BYTES {
                        return writer.end(first).map(drop);
                    }
                }
            }
            Image::File(file, length, path) => {
                let blocks = length.div_ceil(block);
                let begin = Begin { blocks, ..Begin::default() };
                let mut writer = StreamWriter::begin(out, &begin, false)?;
                let mut at = 0;
                while let Some((start, stop)) =
                    next_data(file, at * block, *length).map_err(|e| e.context(path.display()))?
                {
                    at = at.max(start / block);
                    let stop = stop.div_ceil(block);
                    while at < stop {
                        let wanted = (stop - at).min(READ_BLOCKS as u64) as usize;
                        let into = bytes_mut(&mut buffer[..wanted]);
                        let read =
                            fill(into, |into, done| file.read_at(into, at * block + done as u64))
                                .map_err(|e| unread(path, e))?;
                        let ends = at * block + read as u64;
                        if ends < ((at + wanted as u64) * block).min(*length) {
                            return Err(cut_off(ends, *length).context(path.display()));
                        }
                        put(&mut writer, at, &buffer[..wanted])?;
                        at += wanted as u64;
                        bar.set(at * block, *length);
                    }
                }
                still_has(file, *length).map_err(|e| e.context(path.display()))?;
                writer.end(blocks).map(drop)
            }
        }
    }
}

/// Fills a buffer as far as there is something, and the rest of it with zeroes.
fn fill(
    into: &mut [u8],
    mut read: impl FnMut(&mut [u8], usize) -> std::io::Result<usize>,
) -> std::io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match read(&mut into[done..], done) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    into[done..].fill(0);
    Ok(done)
}

/// Writes blocks, but for those of zeroes.
fn put(writer: &mut StreamWriter<impl Write>, first: u64, blocks: &[Block]) -> Result<()> {
    let is_zero = |block: &Block| block.0.iter().all(|&byte| byte == 0);
    let mut at = 0;
    for run in blocks.chunk_by(|one, other| is_zero(one) == is_zero(other)) {
        if !is_zero(&run[0]) {
            writer.data(first + at as u64, run)?;
        }
        at += run.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use onefold_backend::scratch::scratch;

    use super::*;

    /// Cuts a file off as soon as something is written.
    struct Cutting<'a>(&'a File, u64);

    impl Write for Cutting<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.set_len(self.1)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What was cut off became zeroes.
    #[test]
    fn an_image_that_is_cut_off_while_it_is_read_is_no_volume() {
        let length = 16 << 20;
        let file = scratch().unwrap();
        for (data, cut) in [(length, (5 << 20) + 5), (1 << 20, 12 << 20)] {
            file.set_len(0).unwrap();
            file.write_all_at(&vec![7; data], 0).unwrap();
            file.set_len(length as u64).unwrap();
            let image = Image::File(file.try_clone().unwrap(), length as u64, "image".into());
            let error = image.pack(Cutting(&file, cut)).unwrap_err();
            let told = ["image: ", &format!("ends at byte {cut}"), &format!("had {length} bytes")];
            assert!(told.iter().all(|part| error.to_string().contains(part)), "{error}");
        }
    }
}
