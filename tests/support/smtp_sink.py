"""A mail server that prints a line of JSON for each mail that it accepts or rejects.

The first mails can hang, and the next can be rejected temporarily. With --user, a login is required; with --certificate, TLS is
required: from the first byte, or by STARTTLS. The server ends when its standard input ends.
"""

import argparse
import asyncio
import json
import logging
import ssl
import sys
import warnings
from email import message_from_bytes, policy

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword


def report(**what):
    print(json.dumps(what), flush=True)


class Sink:
    def __init__(self, arguments):
        self.hang, self.refuse, self.forbid = arguments.hang, arguments.refuse, arguments.forbid

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address == self.forbid:
            report(event="forbidden", to=address)
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        if self.hang > 0:
            self.hang -= 1
            report(event="hung")
            await asyncio.Event().wait()
        if self.refuse > 0:
            self.refuse -= 1
            report(event="refused")
            return "451 4.3.0 try again later"
        mail = message_from_bytes(envelope.content, policy=policy.default)
        part = lambda kind: mail.get_body((kind,)).get_content()
        report(
            event="taken",
            sender=envelope.mail_from,
            recipients=envelope.rcpt_tos,
            headers=[[name, str(value)] for name, value in mail.items()],
            subject=mail["Subject"],
            message_id=mail["Message-ID"],
            content_type=mail.get_content_type(),
            text=part("plain"),
            html=part("html"),
            tls=session.ssl is not None,
            login=session.auth_data,
        )
        return "250 OK"


class TlsFromTheFirstByte(Sink):
    """The session object only records STARTTLS."""

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        session.host_name = hostname
        session.ssl = session.ssl or server.transport.get_extra_info("sslcontext")
        return responses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--hang", type=int, default=0)
    parser.add_argument("--refuse", type=int, default=0)
    parser.add_argument("--forbid")
    parser.add_argument("--user")
    parser.add_argument("--password")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--tls", choices=["starttls", "wrapped"])
    arguments = parser.parse_args()
    # aiosmtpd warns of insecure options, which tests use.
    warnings.simplefilter("ignore")
    logging.getLogger("mail.log").setLevel(logging.CRITICAL + 1)

    options = {}
    if arguments.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(arguments.certificate, arguments.key)
        if arguments.tls == "wrapped":
            options["ssl_context"] = context
        else:
            options.update(tls_context=context, require_starttls=True)
    if arguments.user:

        def authenticate(server, session, envelope, mechanism, data):
            known = LoginPassword(arguments.user.encode(), arguments.password.encode())
            if data != known:
                report(event="login rejected")
                return AuthResult(success=False, handled=False)
            return AuthResult(success=True, auth_data=data.login.decode())

        options.update(authenticator=authenticate, auth_required=True, auth_require_tls=arguments.tls == "starttls")
    handler = (TlsFromTheFirstByte if arguments.tls == "wrapped" else Sink)(arguments)
    controller = Controller(handler, hostname="127.0.0.1", port=arguments.port, **options)
    controller.start()
    report(event="listening")
    sys.stdin.read()
    controller.stop(no_assert=True)


if __name__ == "__main__":
    main()
