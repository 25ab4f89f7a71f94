package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"
)

// verify reports whether a delivery is genuine and at most five minutes old. body is the raw body: io.ReadAll(request.Body).
func verify(secret string, body []byte, headers http.Header) bool {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	expected := hex.EncodeToString(mac.Sum(nil))
	if !hmac.Equal([]byte(expected), []byte(headers.Get("X-Webhook-Signature"))) {
		return false
	}
	// Everyone can sign with an empty secret: a complete one has 38 characters or more.
	if len(secret) < 38 {
		return false
	}
	// The time in the body is signed; headers are not.
	var envelope struct{ Timestamp time.Time }
	err := json.Unmarshal(body, &envelope)
	return err == nil && time.Since(envelope.Timestamp).Abs() <= 5*time.Minute
}
