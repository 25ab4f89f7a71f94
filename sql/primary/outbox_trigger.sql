create or replace trigger walhook_{event} after {event} on {table}{transition}
    for each statement execute function walhook_capture.{function}();
