//! The line to a store of S3: an HTTP client that ends a request when nothing moves, follows nobody elsewhere, and
//! takes no more of an answer than it may have.
//!
//! A limit of a whole request would cut a pack off that goes up over a slow line. So time counts from the last part
//! that was sent or came.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::{
    ClientConfigKey, ClientOptions, Error as StoreError,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
        HttpResponse, HttpResponseBody, HttpService,
    },
};
use reqwest::{Client, Method, redirect::Policy};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Most bytes of an answer that says why a request failed.
const ERROR_MAX: u64 = 64 << 10;

/// Most bytes of a listing, of a role's credentials, and of the answer to a change.
const ANSWER_MAX: u64 = 16 << 20;

/// Most characters of what the system says of a connection.
const WHY_MAX: usize = 200;

/// How long one waits for a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For a connection.
    pub(super) connect: Duration,
    /// For the next part of what is sent or comes.
    pub(super) idle: Duration,
    /// For a whole lease.
    pub(super) lease: Duration,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// The system's error of the connection, without addresses.
    Line(String),
    /// Nothing moved for so long.
    Idle(Duration),
    /// The store sends the client to another address, with this status.
    Elsewhere(u16),
    /// The answer is longer than any that can be meant.
    TooLong,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Line(why) => f.write_str(why),
            Silence::Idle(time) => write!(f, "nothing came for {} s", time.as_secs()),
            Silence::Elsewhere(status) => write!(f, "it sends elsewhere (HTTP {status})"),
            Silence::TooLong => f.write_str("its answer has no end"),
        }
    }
}

impl std::error::Error for Silence {}

impl Silence {
    fn wrapped(self) -> HttpError {
        let kind = match &self {
            Silence::Idle(_) => HttpErrorKind::Timeout,
            _ => HttpErrorKind::Unknown,
        };
        HttpError::new(kind, self)
    }

    fn of(error: reqwest::Error) -> HttpError {
        let error = error.without_url();
        let mut last: &dyn std::error::Error = &error;
        while let Some(source) = last.source() {
            last = source;
        }
        let text = last.to_string();
        Silence::Line(text.chars().filter(|c| !c.is_control()).take(WHY_MAX).collect()).wrapped()
    }
}

/// Makes clients with these limits.
#[derive(Debug)]
pub(super) struct Line(pub(super) Limits);

impl HttpConnector for Line {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        // A signed request that is sent on to another address tells it what it must not know.
        let client = Client::builder()
            .user_agent("onefold")
            .http1_only()
            .redirect(Policy::none())
            .connect_timeout(self.0.connect)
            .https_only(allows_http.as_deref() != Some("true"))
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .build();
        let client =
            client.map_err(|error| StoreError::Generic { store: "S3", source: Box::new(error) })?;
        Ok(HttpClient::new(Service { client, idle: self.0.idle }))
    }
}

#[derive(Debug)]
struct Service {
    client: Client,
    idle: Duration,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Service {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.perform(request))
    }
}

impl Service {
    async fn perform(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse();
        let url = url.map_err(|_| Silence::Line("its address is none".into()).wrapped())?;
        // Whole objects are bounded by who reads them, by the length that was asked for.
        let is_object = parts.method == Method::GET && parts.uri.query().is_none();
        let mut sent = reqwest::Request::new(parts.method, url);
        *sent.headers_mut() = parts.headers;
        let moved = Arc::new(AtomicU64::new(0));
        if body.content_length() > 0 {
            let body = Sent { body, moved: moved.clone() };
            *sent.body_mut() = Some(reqwest::Body::wrap(body));
        }
        let answer = while_it_moves(self.client.execute(sent), &moved, self.idle).await;
        let answer = answer.ok_or_else(|| Silence::Idle(self.idle).wrapped())?;
        let answer = answer.map_err(Silence::of)?;
        let status = answer.status();
        if status.is_redirection() {
            return Err(Silence::Elsewhere(status.as_u16()).wrapped());
        }
        let most = match status.is_success() {
            true if is_object => u64::MAX,
            true => ANSWER_MAX,
            false => ERROR_MAX,
        };
        let headers = answer.headers().clone();
        let (body, idle) = (reqwest::Body::from(answer), self.idle);
        let body = Received { body, idle, due: Box::pin(sleep(idle)), left: most };
        let mut answer = HttpResponse::new(HttpResponseBody::new(body));
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }
}

/// Waits for the end of something while what it counts changes; `None` when that stands still for so long.
async fn while_it_moves<T>(
    work: impl Future<Output = T>,
    moved: &AtomicU64,
    idle: Duration,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let before = moved.load(Relaxed);
        match timeout(idle, &mut work).await {
            Ok(ended) => return Some(ended),
            Err(_) if moved.load(Relaxed) != before => {}
            Err(_) => return None,
        }
    }
}

/// A body on its way, which counts its parts.
struct Sent {
    body: HttpRequestBody,
    moved: Arc<AtomicU64>,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.moved.fetch_add(1, Relaxed);
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that comes: it ends when nothing comes, or too much.
struct Received {
    body: reqwest::Body,
    idle: Duration,
    due: Pin<Box<Sleep>>,
    left: u64,
}

impl Body for Received {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let Poll::Ready(part) = Pin::new(&mut self.body).poll_frame(context) else {
            let idle = self.idle;
            let over = self.due.as_mut().poll(context);
            return over.map(|()| Some(Err(Silence::Idle(idle).wrapped())));
        };
        let due = Instant::now() + self.idle;
        self.due.as_mut().reset(due);
        Poll::Ready(part.map(|part| {
            let part = part.map_err(Silence::of)?;
            let bytes = part.data_ref().map_or(0, |bytes| bytes.len() as u64);
            let left = self.left.checked_sub(bytes);
            self.left = left.ok_or_else(|| Silence::TooLong.wrapped())?;
            Ok(part)
        }))
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_ends_and_what_moves_goes_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (moved, short) = (AtomicU64::new(0), Duration::from_millis(20));
        let still = std::future::pending::<()>();
        assert_eq!(runtime.block_on(while_it_moves(still, &moved, short)), None);
        // It is looked at more often than it takes to be over, and has moved each time.
        let mut looks = 0;
        let moving = std::future::poll_fn(|_| {
            moved.fetch_add(1, Relaxed);
            looks += 1;
            if looks < 5 { Poll::Pending } else { Poll::Ready(7) }
        });
        assert_eq!(runtime.block_on(while_it_moves(moving, &moved, short)), Some(7));
    }
}
