"""TLS of the HTTP server.

server_certificate  the certificate and its key, replaced while the server runs
certificate_expiry  the end of a certificate's validity
handshake           the handshake of one connection, counted and bounded
"""
