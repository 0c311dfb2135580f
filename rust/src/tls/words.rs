//! Reports why a TLS handshake failed, in the words of etcd, which operators know.

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};
use std::io;

const EXPIRED: &str = "x509: certificate has expired or is not yet valid";

pub fn of_handshake(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "EOF".to_owned();
    }
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match found {
        Some(Error::AlertReceived(alert)) => format!("remote error: tls: {}", of_alert(*alert)),
        Some(Error::NoCertificatesPresented) => "tls: client didn't provide a certificate".into(),
        Some(Error::InvalidCertificate(reason)) => of_certificate(reason),
        _ => format!("tls: {error}"),
    }
}

/// Reports why a server's certificate, or the handshake with a server, failed.
pub fn of_server(error: &io::Error) -> String {
    let found = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match found {
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => {
            "tls: failed to verify certificate: x509: it is not valid for the server's name".into()
        }
        _ => of_handshake(error),
    }
}

fn of_certificate(reason: &CertificateError) -> String {
    use CertificateError::*;
    let text = match reason {
        // Clients' certificates are compared with no names but the allowed ones.
        NotValidForName => return "client certificate authentication failed".to_owned(),
        Revoked => return "transport: certificate revoked".to_owned(),
        UnknownIssuer | BadSignature => "x509: certificate signed by unknown authority".to_owned(),
        InvalidPurpose | InvalidPurposeContext { .. } => {
            "x509: certificate specifies an incompatible key usage".to_owned()
        }
        ExpiredContext { time, not_after } => {
            format!("{EXPIRED}: current time {} is after {}", utc(*time), utc(*not_after))
        }
        NotValidYetContext { time, not_before } => {
            format!("{EXPIRED}: current time {} is before {}", utc(*time), utc(*not_before))
        }
        other => format!("x509: {other}"),
    };
    format!("tls: failed to verify certificate: {text}")
}

fn of_alert(alert: AlertDescription) -> String {
    use AlertDescription::*;
    let text = match alert {
        CloseNotify => "close notify",
        UnexpectedMessage => "unexpected message",
        BadRecordMac => "bad record MAC",
        RecordOverflow => "record overflow",
        HandshakeFailure => "handshake failure",
        BadCertificate => "bad certificate",
        UnsupportedCertificate => "unsupported certificate",
        CertificateRevoked => "revoked certificate",
        CertificateExpired => "expired certificate",
        CertificateUnknown => "unknown certificate",
        IllegalParameter => "illegal parameter",
        UnknownCA => "unknown certificate authority",
        AccessDenied => "access denied",
        DecodeError => "error decoding message",
        DecryptError => "error decrypting message",
        ProtocolVersion => "protocol version not supported",
        InsufficientSecurity => "insufficient security level",
        InternalError => "internal error",
        InappropriateFallback => "inappropriate fallback",
        UserCanceled => "user canceled",
        NoRenegotiation => "no renegotiation",
        MissingExtension => "missing extension",
        UnsupportedExtension => "unsupported extension",
        UnrecognisedName => "unrecognized name",
        UnknownPSKIdentity => "unknown PSK identity",
        CertificateRequired => "certificate required",
        NoApplicationProtocol => "no application protocol",
        other => return format!("alert({})", u8::from(other)),
    };
    text.to_owned()
}

/// Formats a time as RFC 3339 does.
fn utc(time: UnixTime) -> String {
    let seconds = time.as_secs();
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    let is_leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn moments() {
        let known = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in known {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            assert_eq!(utc(time), text);
        }
    }
}
