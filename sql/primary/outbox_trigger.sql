create or replace trigger walhook_{event} after {event} on {table}
    for each {level} execute function walhook_capture.{function}();
