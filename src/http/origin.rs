//! An HTTP endpoint: scheme, authority and base path.

use std::{error::Error as StdError, fmt, str::FromStr, sync::Arc};

use http::{
    HeaderValue, Request, Uri,
    header::HOST,
    uri::{Authority, Parts, PathAndQuery, Scheme},
};

/// An HTTP endpoint of a shared client, by its URL: `http://10.0.0.1:8080/base`.
///
/// Each request gets the scheme and the authority of the origin. Path and query stay, after the base
/// path if there is one. A `Host` header of the request stays; without one the client sends the
/// endpoint's authority, or, with [`preserve_host`](Self::preserve_host), that of the request's URL.
///
/// Works with clients of
/// [`http::Request`](https://docs.rs/http/1/http/request/struct.Request.html), such as
/// hyper-util's, and with the feature `reqwest` for `reqwest::Client`. See the
/// [module](crate::http) on TLS.
///
/// ```
/// use counterpoise::{http::Origin, Endpoint};
///
/// # fn main() -> Result<(), counterpoise::http::OriginError> {
/// let endpoint = Endpoint::new(Origin::try_from("http://10.0.0.1:8080")?).weight(4);
/// assert_eq!(endpoint.target().to_string(), "http://10.0.0.1:8080/");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Origin(Arc<Inner>);

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Inner {
    scheme: Scheme,
    authority: Authority,
    /// Without the slash at its end; often empty.
    base: String,
    preserve_host: bool,
    #[cfg(feature = "reqwest")]
    pub(super) url: reqwest::Url,
}

/// The error for a string that is not an HTTP origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginError {
    text: String,
    problem: &'static str,
}

impl Origin {
    /// Sets whether a request without a `Host` header gets one with the authority of its URL, instead
    /// of the endpoint's.
    ///
    /// Default: false. For servers at addresses that distinguish virtual hosts by the name. A request
    /// whose URL has no authority gets no header.
    #[must_use]
    pub fn preserve_host(mut self, preserve: bool) -> Self {
        Arc::make_mut(&mut self.0).preserve_host = preserve;
        self
    }

    /// Returns the scheme.
    #[must_use]
    pub fn scheme(&self) -> &Scheme {
        &self.0.scheme
    }

    /// Returns the host, with the port if the URL has one.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.0.authority
    }

    /// Returns host and port, as for a TCP connection; without a port in the URL, that of the scheme.
    ///
    /// ```
    /// # fn main() -> Result<(), counterpoise::http::OriginError> {
    /// use counterpoise::http::Origin;
    ///
    /// assert_eq!(Origin::try_from("https://example.com")?.address(), "example.com:443");
    /// assert_eq!(Origin::try_from("http://[::1]:8080/base")?.address(), "[::1]:8080");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn address(&self) -> String {
        let usual = if self.0.scheme == Scheme::HTTPS {
            443
        } else {
            80
        };
        let port = self.0.authority.port_u16().unwrap_or(usual);
        format!("{}:{port}", self.0.authority.host())
    }

    #[cfg(feature = "reqwest")]
    pub(super) fn url(&self) -> &reqwest::Url {
        &self.0.url
    }

    pub(super) fn base(&self) -> &str {
        &self.0.base
    }

    pub(super) fn preserves_host(&self) -> bool {
        self.0.preserve_host
    }

    /// Changes the URL of a request to this origin. Errors if the path is too long.
    pub(super) fn redirect<B>(&self, request: &mut Request<B>) -> Result<(), http::Error> {
        let Parts {
            authority,
            path_and_query,
            ..
        } = std::mem::take(request.uri_mut()).into_parts();
        let uri = Uri::builder()
            .scheme(self.0.scheme.clone())
            .authority(self.0.authority.clone())
            .path_and_query(self.join(path_and_query)?);
        *request.uri_mut() = uri.build()?;
        if self.preserves_host()
            && let Some(authority) = authority
        {
            let host = HeaderValue::from_str(without_user(authority.as_str()))?;
            request.headers_mut().entry(HOST).or_insert(host);
        }
        Ok(())
    }

    /// Puts the base path in front of a path.
    fn join(&self, path: Option<PathAndQuery>) -> Result<PathAndQuery, http::Error> {
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let base = self.base();
        if base.is_empty() || path == "*" {
            return Ok(path);
        }
        let path = path.as_str();
        let slash = if path.starts_with('?') { "/" } else { "" };
        let joined = format!("{base}{slash}{path}");
        Ok(PathAndQuery::try_from(joined)?)
    }
}

/// Returns an authority without its user name.
fn without_user(authority: &str) -> &str {
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let refuse = |problem| OriginError {
            text: text.to_owned(),
            problem,
        };
        if text.contains('#') {
            return Err(refuse("has a fragment"));
        }
        let uri: Uri = text.parse().map_err(|_| refuse("is no URL"))?;
        let Parts {
            scheme,
            authority,
            path_and_query,
            ..
        } = uri.into_parts();
        let scheme = scheme.ok_or_else(|| refuse("has no scheme"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(refuse("is neither http nor https"));
        }
        let authority = authority.ok_or_else(|| refuse("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("has a user name, which belongs in a header"));
        }
        let path = path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if path.query().is_some() {
            return Err(refuse("has a query"));
        }
        let base = path.path().trim_end_matches('/').to_owned();
        #[cfg(feature = "reqwest")]
        let url = reqwest::Url::parse(text).map_err(|_| refuse("is no URL"))?;
        Ok(Self(Arc::new(Inner {
            scheme,
            authority,
            base,
            preserve_host: false,
            #[cfg(feature = "reqwest")]
            url,
        })))
    }
}

impl TryFrom<&str> for Origin {
    type Error = OriginError;

    fn try_from(text: &str) -> Result<Self, OriginError> {
        text.parse()
    }
}

impl TryFrom<String> for Origin {
    type Error = OriginError;

    fn try_from(text: String) -> Result<Self, OriginError> {
        text.parse()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}{}/",
            self.0.scheme, self.0.authority, self.0.base
        )
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({self})")
    }
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the origin {:?} {}", self.text, self.problem)
    }
}

impl StdError for OriginError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(origin: &str, uri: &str) -> String {
        let mut request = Request::builder().uri(uri).body(()).unwrap();
        origin
            .parse::<Origin>()
            .unwrap()
            .redirect(&mut request)
            .unwrap();
        request.uri().to_string()
    }

    #[test]
    fn path_and_query_are_kept_behind_the_base_path() {
        for (origin, uri, want) in [
            ("http://h:1", "http://x/a/b?c=d", "http://h:1/a/b?c=d"),
            ("http://h:1/", "/a", "http://h:1/a"),
            ("https://h", "http://x", "https://h/"),
            (
                "http://[::1]:80/base",
                "http://x/a%20b?q",
                "http://[::1]:80/base/a%20b?q",
            ),
            ("http://h/base/", "http://x/", "http://h/base/"),
            ("http://h/base", "http://x?q", "http://h/base/?q"),
        ] {
            assert_eq!(redirected(origin, uri), want);
        }
    }

    #[test]
    fn hosts_are_kept_if_the_origin_preserves_them() {
        let origin: Origin = "http://h:1".parse().unwrap();
        let host = |origin: &Origin, own: Option<&str>| {
            let mut request = Request::builder()
                .uri("http://user@service:9/")
                .body(())
                .unwrap();
            if let Some(own) = own {
                request.headers_mut().insert(HOST, own.parse().unwrap());
            }
            origin.redirect(&mut request).unwrap();
            request
                .headers()
                .get(HOST)
                .map(|host| host.to_str().unwrap().to_owned())
        };
        assert_eq!(host(&origin, None), None);
        assert_eq!(host(&origin, Some("own")).as_deref(), Some("own"));
        let origin = origin.preserve_host(true);
        assert_eq!(host(&origin, None).as_deref(), Some("service:9"));
        assert_eq!(host(&origin, Some("own")).as_deref(), Some("own"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "h:1",
            "/path",
            "ftp://h",
            "http://",
            "http://u:p@h",
            "http://h/?q",
            "http://h/#f",
        ] {
            let error = text.parse::<Origin>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
